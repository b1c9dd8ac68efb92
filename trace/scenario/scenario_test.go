package scenario

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// texts runs f on every scenario of testdata.
func texts(t *testing.T, f func(t *testing.T, name, text string)) {
	files, _ := filepath.Glob("testdata/*.roce")
	if len(files) < 10 {
		t.Fatal("the scenarios are gone")
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) { f(t, name, string(b)) })
	}
}

// play plays a text that can be played.
func play(t *testing.T, name, text string, out func(time.Duration, string)) *Result {
	t.Helper()
	s, err := Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Play(out)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every scenario passes, and says of which case it is.
func TestScenarios(t *testing.T) {
	texts(t, func(t *testing.T, name, text string) {
		if n, ok := strings.CutPrefix(name, "case"); ok && !strings.HasPrefix(text, "# Case "+n[:2]) {
			t.Errorf("the first line does not name case %s", n[:2])
		}
		var lines []string
		r := play(t, name, text, func(at time.Duration, l string) { lines = append(lines, fmt.Sprint(at, " ", l)) })
		if !r.Passed {
			t.Errorf("%v\n%s", r, strings.Join(lines, "\n"))
		}
		if r.Sent == 0 && !strings.HasPrefix(name, "uc-") || r.Statements == 0 {
			t.Errorf("nothing was played: %+v", r)
		}
	})
}

var (
	psnField   = regexp.MustCompile(`^(\s*(?:\S+ )?> +\S+ +)(\S+)`)
	numberWord = regexp.MustCompile(`\b(msn|len|va|rkey|imm|inv|size|original|srcqp|srqn|qkey)=([^\s:]+)`)
)

// Every expectation can fail: each is made wrong, alone, and the run fails at that line. Where a statement is repeated it may fail at
// the first time.
func TestEveryExpectationCanFail(t *testing.T) {
	mutants := 0
	texts(t, func(t *testing.T, name, text string) {
		lines := strings.Split(strings.ReplaceAll(text, "5000", "50"), "\n") // the long one is slow
		for i, line := range lines {
			code, _, _ := strings.Cut(line, " #")
			w := strings.Fields(code)
			if len(w) > 0 && isTime(w[0]) {
				w = w[1:]
			}
			if len(w) == 0 {
				continue
			}
			var l []string // what the line becomes
			switch w[0] {
			case ">":
				m := psnField.FindStringSubmatch(code)
				l = append(l, psnField.ReplaceAllString(code, "${1}0x7ffff1"))
				if m == nil {
					t.Fatalf("line %d: no PSN", i+1)
				}
				other := "SEND_ONLY_IMM"
				if w[1] == other {
					other = "SEND_FIRST"
				}
				l = append(l, strings.Replace(code, w[1], other, 1))
				for _, f := range numberWord.FindAllStringSubmatchIndex(code, -1) {
					wrong := "1048"
					if code[f[4]:f[5]] == wrong {
						wrong = "1"
					}
					l = append(l, code[:f[4]]+wrong+code[f[5]:])
				}
				if strings.Contains(code, "data=") {
					l = append(l, regexp.MustCompile(`data=("[^"]*"|\S+)`).ReplaceAllString(code, `data="no such data"`))
				}
				if strings.Contains(code, "syndrome=") {
					l = append(l, regexp.MustCompile(`syndrome=\S+`).ReplaceAllString(code, `syndrome=0x64`))
				}
				if strings.Contains(code, " ar") && !strings.Contains(code, "ar=") {
					l = append(l, strings.Replace(code, " ar", " ar=0", 1))
				}
			case "wc":
				l = append(l, strings.Replace(code, "wc "+w[1], "wc 99", 1), strings.Replace(code, w[2], "LOC_EEC_OP_ERR", 1))
				for _, f := range numberWord.FindAllStringSubmatchIndex(code, -1) {
					l = append(l, code[:f[4]]+"1048"+code[f[5]:])
				}
			case "memory":
				l = append(l, code[:strings.Index(code, w[2])]+"hex:e7")
			case "state":
				l = append(l, strings.Replace(code, w[1], "SQD", 1))
			case "counter":
				l = append(l, strings.Replace(code, "=", "=7", 1))
			case "event":
				l = append(l, strings.Replace(code, w[1], "GID_CHANGE", 1))
			}
			for _, wrong := range l {
				if wrong == code {
					t.Fatalf("line %d is not changed: %s", i+1, code)
				}
				was := lines[i]
				lines[i] = wrong
				s, err := Parse(name, strings.Join(lines, "\n"))
				lines[i] = was
				if err != nil {
					if strings.Contains(wrong, "SEND_ONLY_IMM") || strings.Contains(wrong, "SEND_FIRST") { // a field that SEND has not
						continue
					}
					t.Fatal(err)
				}
				mutants++
				r, err := s.Play(nil)
				if err != nil || r.Failure == nil || r.Failure.Line != i+1 {
					t.Errorf("line %d: %q in place of %q is not told: %v, %v", i+1, wrong, code, r, err)
				}
			}
		}
	})
	if mutants < 250 {
		t.Errorf("only %d", mutants)
	}
}

// What is sent and not expected is a failure, at once or at the end, as is what is expected and not sent.
func TestUnexpected(t *testing.T) {
	const head = "create_qp q rc\nreg_mr a\npost_send 1 SEND sge=a:4\n"
	for _, c := range []struct {
		name, text string
		line       int
		want       string
	}{
		{"not expected, at the end", head, 4, "wanted nothing; got > SEND_ONLY 0x000100 ar data=hex:00000000"},
		{"not expected, before the time goes on", head + "+1ms state RTS\n", 4, "wanted nothing; got > SEND_ONLY"},
		{"not expected, in silence", head + "silence", 4, "wanted nothing; got > SEND_ONLY"},
		{"not sent", head + "> SEND_ONLY sq\n> SEND_ONLY sq+1", 5, "wanted > SEND_ONLY sq+1; got nothing: it is 0s"},
		{"not sent in its time", head + "> SEND_ONLY sq\n+[1ms..2ms] > SEND_ONLY sq", 5, "got nothing: it is 2ms"},
		{"sent too early", head + "> SEND_ONLY sq\n+[100ms..200ms] > SEND_ONLY sq", 5, "no line before this one expects it, at 67.108864ms"},
		{"sent too late", head + "> SEND_ONLY sq\n+60ms > SEND_ONLY sq", 5, "got nothing: it is 60ms"},
		{"another kind comes first", head + "> SEND_ONLY sq\n+[0..1s] wc 1 SUCCESS", 5, "wanted nothing; got > SEND_ONLY"},
		{"a completion that nobody expects", head + "> SEND_ONLY sq\n< ACKNOWLEDGE sq\n", 6, "wanted nothing; got wc 1 SUCCESS SEND len=4"},
		{"no completion", head + "> SEND_ONLY sq\nwc 1 SUCCESS", 5, "wanted wc 1 SUCCESS; got nothing"},
		{"an event that nobody expects", "create_qp q rc\n< WRITE_ONLY rq len=4 data=\"evil\" rkey=0x42\n> ACKNOWLEDGE rq\nstate ERR", 5, "got event QP_ACCESS_ERR"},
		{"a call that has to fail", head + "> SEND_ONLY sq\npost_send 2 SEND err=EINVAL", 5, "got no error"},
		{"a call that fails", "create_qp q rc state=INIT\npost_send 2 SEND", 2, "sends need RTS"},
		{"another errno", "create_qp q rc state=INIT\npost_send 2 SEND err=ENOMEM", 2, "sends need RTS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := play(t, "x.roce", c.text, nil)
			if r.Failure == nil || r.Failure.Line != c.line || !strings.Contains(r.Failure.Error(), c.want) || strings.Contains(r.Failure.Error(), "\n") {
				t.Errorf("%v\nwant line %d and %q", r, c.line, c.want)
			}
		})
	}
}

// What cannot be played is told with file, line and reason.
func TestErrors(t *testing.T) {
	const head = "create_qp q rc\nreg_mr a\n"
	for _, c := range []struct {
		text string
		line int
		want string
	}{
		{"", 1, "nothing in it"},
		{"# no more\n", 1, "nothing in it"},
		{"bogus", 1, `"bogus" is no statement`},
		{"+1ms", 1, "no statement"},
		{"+1 silence", 1, "is no time"},
		{"-1ms silence", 1, "is no statement"},
		{"+[1ms..2ms] silence", 1, "happens at one moment"},
		{"1ms silence\n0 silence", 2, "it is 1ms already"},
		{"+2T silence", 1, "T is the ACK timeout"},
		{"< SEND_ONLY 1", 1, "no queue pair yet"},
		{"create_qp q xx", 1, "rc, uc, ud, xrc_ini or xrc_tgt"},
		{"create_qp q rc qpn=0x1000000", 1, "more than 24 bits"},
		{"create_qp q rc qpn=1", 1, "0x10 ... 0xfffffe"},
		{"create_qp q rc mtu=1000", 1, "path_mtu 1000"},
		{"create_qp q rc timeout=32", 1, "0 ... 31"},
		{head + "create_qp q rc", 3, "already"},
		{head + "reg_mr a", 3, "already"},
		{head + "nic addr=10.0.0.1", 3, "first statement"},
		{"nic addr=10.0.0.1 peer=fd00::1", 1, "one family"},
		{"nic profile=best", 1, "ibta"},
		{head + "< SEND_ONLY", 3, "an opcode and a PSN"},
		{head + "< SEND_MOST 1", 3, "RC has no opcode SEND_MOST"},
		{head + "< SEND_ONLY rq*2", 3, "is no PSN"},
		{head + "< SEND_ONLY 0x1000000", 3, "more than 24 bits"},
		{head + "< SEND_ONLY 1 va=2", 3, "RC_SEND_ONLY has no va"},
		{head + "< SEND_ONLY 1 color=2", 3, "no packet has a field color"},
		{head + "< SEND_ONLY 1 ar ar", 3, "twice"},
		{head + "< SEND_ONLY 1 pkey", 3, "needs a value"},
		{head + "< ACKNOWLEDGE 1 syndrome=NAK", 3, "is no syndrome"},
		{head + "< SEND_ONLY 1 data=pattern:1", 3, "are no bytes"},
		{head + "< SEND_ONLY 1 data=zero:99999999", 3, "at most 16777216"},
		{head + "< SEND_ONLY 1 data=hex:abc", 3, "even number"},
		{head + `< SEND_ONLY 1 data="abc`, 3, "quote"},
		{head + "> SEND_ONLY 1 bad=icrc", 3, "of the peer"},
		{head + "> SEND_ONLY 1 qp=r", 3, "no queue pair r"},
		{head + "post_send 1 DREAM", 3, "no send operation"},
		{head + "post_send 1 SEND sge=b", 3, `no region "b"`},
		{head + "create_srq s\ncreate_srq s", 4, "already"},
		{head + "create_srq s num=0x1000000", 3, "more than 24 bits"},
		{head + "create_srq s num=0", 3, "1 ... 0xffffff"},
		{head + "alloc_mw w type=3", 3, "1 or 2"},
		{head + "alloc_mw w key=0x10ff", 3, "begins with the same 24 bits"},
		{head + "post_send 1 BIND_MW newkey=1 sge=a", 3, "BIND_MW has mw="},
		{head + "alloc_mw w\npost_send 1 SEND mw=w", 4, "nothing else does"},
		{head + "post_send 1 BIND_MW mw=w", 3, "no window"},
		{head + "post_recv 1 srq=s", 3, "no shared receive queue s"},
		{head + "post_send 1 SEND err=EWHY", 3, "no error of a verb"},
		{head + "wc 1 GREAT", 3, "no status"},
		{head + "wc 1 SUCCESS DREAM", 3, "no operation"},
		{head + "event SURPRISE", 3, "ibv_event_type"},
		{head + "state FLUX", 3, "state RESET"},
		{head + "counter nothing=1", 3, "no counter nothing"},
		{head + "memory a+4096 zero:1", 3, "1 bytes at a place where the region has 0"},
		{head + "memory a+5000 zero:1", 3, "a has 4096 bytes"},
		{"repeat 2\nsilence", 1, "no end"},
		{"end", 1, "ends a repeat"},
		{"repeat 0\nend", 1, "1 ... 10000"},
		{"repeat 2\nreg_mr a\nend", 2, "cannot be repeated"},
		{"repeat 2\n1ms silence\nend", 2, "cannot be repeated"},
		{"repeat 10000\nrepeat 10000\nsilence\nend\nend", 3, "more than 200000 statements"},
	} {
		s, err := Parse("x.roce", c.text)
		if err == nil {
			_, err = s.Play(nil)
		}
		var e *Error
		if !errors.As(err, &e) || e.Line != c.line || !strings.Contains(e.Text, c.want) || !strings.HasPrefix(err.Error(), fmt.Sprintf("x.roce:%d: ", c.line)) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v\nwant line %d and %q", c.text, err, c.line, c.want)
		}
	}
}

// The example of the manual is one.
func TestManual(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "scenario.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "    # A WRITE, acknowledged.\n")
	text, _, _ = strings.Cut(text, "\n## ")
	if r := play(t, "docs/scenario.md", text, nil); !r.Passed || r.Statements != 6 {
		t.Errorf("%v", r)
	}
	for verb := range statements {
		if !strings.Contains(string(b), "`"+verb) && !strings.Contains(string(b), "    "+verb+" ") {
			t.Errorf("%s is not in the manual", verb)
		}
	}
	for _, f := range fields {
		if !strings.Contains(string(b), "`"+f.name+"=`") && !strings.Contains(string(b), "`"+f.name+"`") {
			t.Errorf("%s is not in the manual", f.name)
		}
	}
}

// What is printed of packets is what a line that expects them may say.
func TestTranscriptIsScenario(t *testing.T) {
	texts(t, func(t *testing.T, name, text string) {
		var sent []string
		play(t, name, text, func(_ time.Duration, l string) {
			if strings.HasPrefix(l, "> ") {
				sent = append(sent, l)
			}
		})
		lines := strings.Split(text, "\n")
		i := 0
		for n, line := range lines {
			at := strings.Index(line, "> ")
			if at < 0 || strings.Contains(text, "repeat") || strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			lines[n] = line[:at] + sent[i]
			i++
		}
		if r := play(t, name, strings.Join(lines, "\n"), nil); !r.Passed {
			t.Error(r)
		}
	})
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.roce")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("f", text)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Line > 1+strings.Count(text, "\n") || strings.Contains(err.Error(), "\n")) {
			t.Fatalf("%q", err)
		}
		if err == nil && !strings.Contains(text, "repeat") && len(text) < 1<<14 {
			if _, err := s.Play(nil); err != nil && !errors.As(err, &e) {
				t.Fatal(err)
			}
		}
	})
}
