//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is where it was measured.
type machine struct {
	CPU     string `json:"cpu"`
	CPUs    int    `json:"cpus"`
	Kernel  string `json:"kernel"`
	Go      string `json:"go"`
	Version string `json:"softnic"` // what `softnic version` prints
}

// thisMachine describes where it runs.
func thisMachine(softnic string) machine {
	m := machine{CPU: "unknown CPU", CPUs: runtime.NumCPU(), Kernel: "unknown kernel", Go: runtime.Version()}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if c := cpuModel(string(b)); c != "" {
			m.CPU = c
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	if out, err := exec.Command(softnic, "version").Output(); err == nil {
		m.Version = firstLine(out)
	}
	return m
}

// cpuModel finds the name of the CPU in /proc/cpuinfo.
func cpuModel(text string) string {
	for l := range strings.Lines(text) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// String is one line.
func (m machine) String() string {
	return fmt.Sprintf("%d x %s, %s, %s, %s", m.CPUs, m.CPU, m.Kernel, m.Go, m.Version)
}
