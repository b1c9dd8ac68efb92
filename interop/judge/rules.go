package judge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
)

// ruleSlack is how exact a machine keeps time that is emulated, or busy.
const ruleSlack = 20 * time.Millisecond

// Rules has the rules of the transports (package trace/rules) look over a capture. What the other party breaks, where one is known
// not to be softnic, is not a finding here: the tests of interop/guest know what the kernel's device may break.
func Rules(path string) ([]Finding, error) {
	if Injected(path) {
		return nil, nil
	}
	own, err := ownAddrs(path)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	kernel, err := kernelAddr(path)
	if err != nil {
		return nil, err
	}
	r, err := report.Analyze([]trace.Input{{Name: path, R: file}}, report.Options{
		Rules: rules.Options{NoICRC: FlushQuirk(path), Slack: ruleSlack, Examples: 1000},
	})
	if err != nil && r == nil {
		return nil, nil // no RoCE packet: the test that made the capture knows whether there should be one
	}
	var l []Finding
	for _, v := range r.Rules {
		for _, x := range v.Violations {
			if x.Src != kernel && (len(own) == 0 || slices.Contains(own, x.Src)) {
				l = append(l, Finding{path, int(x.Packet), fmt.Sprintf("rule %s is broken: %s > %s QP 0x%x: %s", v.Rule, x.Src, x.Dst, x.QPN, x.Text)})
			}
		}
	}
	return l, err
}

// kernelAddr returns the address of the kernel's device, where the entry of a golden capture (package interop/corpus) says it: what that device
// breaks stands in the entry.
func kernelAddr(path string) (netip.Addr, error) {
	entry, err := os.ReadFile(path + ".jsonl")
	if errors.Is(err, fs.ErrNotExist) {
		return netip.Addr{}, nil
	}
	var e struct{ RXE netip.Addr }
	if err == nil {
		err = json.Unmarshal(entry, &e)
	}
	return e.RXE, err
}

// ownAddrs returns softnic's addresses: its log has them, or its own capture; nil where neither is there.
func ownAddrs(path string) ([]netip.Addr, error) {
	if log := LogOf(path); exists(log) {
		own, _, err := ReadLog(log)
		return own, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := trace.NewReader(file)
	if err != nil {
		return nil, err
	}
	_, _ = r.Next() // the interfaces stand before the first packet
	var l []netip.Addr
	for _, i := range r.Interfaces() {
		if strings.HasPrefix(i.App, "softnic") {
			l = append(l, i.Addrs...)
		}
	}
	return l, nil
}
