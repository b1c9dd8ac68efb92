"""rdma-core's own Python suite on softnic, judged by what passes on kernel rxe.

    make pyverbs TESTS=<rdma-core v44>/tests

The suite is not part of this repository: TESTS is the user's copy, which its own run_tests.py runs, under softnic exec, with a daemon
of this script's own. Three runs, as one may be lucky. A run is good when all ids in passes.txt pass, and no more skip than on rxe;
what else fails is named, and does not count. Nothing is left behind, in TESTS neither.
"""
import argparse
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

PYTHON = "/usr/bin/python3"  # Debian's: another one in PATH has no pyverbs
HERE = os.path.dirname(os.path.abspath(__file__))
WHERE = "git clone --depth 1 --branch v44.0 https://github.com/linux-rdma/rdma-core"


def die(text):
    sys.exit("pyverbs: " + text)


def record(path, runner, argv):
    """In the program that softnic exec runs: the suite's own runner, and a line for each verdict."""
    class Result(unittest.TextTestResult):
        def write(self, verdict, test):
            with open(path, "a") as out:
                out.write(f"{verdict} {test.id()}\n")

        def addSuccess(self, test):
            super().addSuccess(test)
            self.write("pass", test)

        def addFailure(self, test, err):
            super().addFailure(test, err)
            self.write("fail", test)

        def addError(self, test, err):
            super().addError(test, err)
            self.write("fail", test)

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self.write("skip", test)

        def addSubTest(self, test, subtest, err):
            super().addSubTest(test, subtest, err)
            if err is not None:
                self.write("fail", test)

    unittest.TextTestRunner.resultclass = Result
    sys.argv = [runner] + argv
    sys.path.insert(0, os.path.dirname(runner))
    runpy.run_path(runner, run_name="__main__")


def check(tests):
    if not tests:
        die(f"say where the suite is: {WHERE}, then make pyverbs TESTS=rdma-core/tests")
    if not os.path.isfile(os.path.join(tests, "run_tests.py")):
        die(f"{tests} has no run_tests.py: TESTS is the folder tests in rdma-core v44: {WHERE}")
    if subprocess.run([PYTHON, "-B", "-c", "import pyverbs.device"], stderr=subprocess.DEVNULL).returncode:
        die("no pyverbs: apt install python3-pyverbs ibverbs-providers")


def address():
    """A loopback address whose RoCE port nobody has."""
    for i in range(os.getpid(), os.getpid() + 1000):
        a = f"127.{40 + i % 20}.{i // 20 % 250}.{1 + i % 250}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            try:
                s.bind((a, 4791))
                return a
            except OSError:
                pass
    die("UDP port 4791 is taken on every address tried: is rdma_rxe loaded? (rmmod rdma_rxe)")


class Daemon:
    def __init__(self, softnic, folder):
        self.softnic, self.socket = softnic, os.path.join(folder, "s")
        # Ends with this script, even after kill -9.
        argv = ["setpriv", "--pdeathsig", "TERM", softnic, "run", "--udp", address(), "--socket", self.socket]
        self.errors = open(os.path.join(folder, "log"), "w+")
        self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        if not self.proc.stdout.readline():  # the line that says it is ready
            self.proc.wait()
            self.errors.seek(0)
            die("softnic run does not start: " + self.errors.read().strip())

    def left(self):
        """What programs have left in the daemon."""
        r = subprocess.run([self.softnic, "resource", "show", "-j", "--socket", self.socket], capture_output=True, text=True)
        return r.stdout.strip() + r.stderr.strip()

    def stop(self):
        """Ends it, and returns what it complained about."""
        self.proc.terminate()
        try:
            code = self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            code = "none: it did not end"
        self.errors.seek(0)
        said = self.errors.read().strip()
        self.errors.close()
        return f"exit code {code} {said}" if code or said else ""


def main():
    p = argparse.ArgumentParser(prog="run.py")
    p.add_argument("--check", action="store_true", help="only look whether everything is there")
    p.add_argument("--softnic", default=os.path.join(HERE, "../../bin/softnic"))
    p.add_argument("--passes", default=os.path.join(HERE, "passes.txt"), help="ids that have to pass")
    p.add_argument("--skips", type=int, default=186, help="skips on kernel rxe")
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--limit", type=float, default=300, help="seconds for a run")
    p.add_argument("tests")
    o = p.parse_args()
    check(o.tests)
    if o.check:
        return 0
    if not os.access(o.softnic, os.X_OK):
        die(f"no {o.softnic}: make build")
    with open(o.passes) as f:
        expected = [line.strip() for line in f if line.strip() and not line.startswith("#")]
    folder = tempfile.mkdtemp(prefix="pyverbs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    daemon, good, complaint = None, True, ""
    try:
        daemon = Daemon(o.softnic, folder)
        for n in range(o.runs):
            good = run(o, daemon, os.path.join(folder, str(n)), expected) and good
    finally:
        if daemon:
            complaint = daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if complaint:
        print("pyverbs: the daemon ended badly:", complaint)
    return 0 if good and not complaint else 1


def run(o, daemon, path, expected):
    """One run: its summary, and whether it is good."""
    argv = [o.softnic, "exec", "--socket", daemon.socket, "--", PYTHON, "-B", os.path.abspath(__file__), "--record", path,
            os.path.join(os.path.abspath(o.tests), "run_tests.py"), "--dev", "rxe_softnic0", "--gid", "1", "-v"]
    try:
        r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                           timeout=o.limit, cwd=os.path.dirname(path))
        output, ended = r.stdout, "" if r.returncode in (0, 1) else f"the suite ended with code {r.returncode}"
    except subprocess.TimeoutExpired as e:
        output, ended = (e.stdout or b"").decode(errors="replace"), f"the suite did not end within {o.limit:g} s"
    verdicts = {}
    if os.path.exists(path):
        with open(path) as f:
            for line in f:
                verdict, _, name = line.strip().partition(" ")
                if verdicts.get(name) != "fail":  # a part of it failed
                    verdicts[name] = verdict
    ids = {v: [name for name in verdicts if verdicts[name] == v] for v in ("pass", "fail", "skip")}
    missed = [name for name in expected if verdicts.get(name) != "pass"]
    left = daemon.left()
    good = not missed and not ended and len(ids["skip"]) <= o.skips and left in ("", "[]")
    if not good or ids["fail"]:
        print(output)
    if ended:
        print("pyverbs:", ended)
    for name in ids["fail"]:
        if name not in expected:
            print(f"pyverbs: {name} failed; it is not expected to pass")
    for name in missed:
        print(f"pyverbs: {name} has to pass: {dict(fail='it failed', skip='it was skipped').get(verdicts.get(name), 'it did not run; is the suite that of v44?')}")
    if len(ids["skip"]) > o.skips:
        print(f"pyverbs: {len(ids['skip'])} skips are more than the {o.skips} of rxe (reasons above)")
    if left not in ("", "[]"):
        print("pyverbs: the suite has ended, and the daemon still has", left)
    print(f"pyverbs: {len(ids['pass'])} passed, {len(ids['fail'])} failed, {len(ids['skip'])} skipped; "
          f"{len(expected) - len(missed)} of {len(expected)} expected", flush=True)
    return good


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        sys.exit(main())
