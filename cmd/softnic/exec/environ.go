//go:build linux

package exec

import (
	"path/filepath"
	"slices"
	"strings"
)

// The variables that the library and the stock verbs libraries read.
const (
	envPreload = "LD_PRELOAD"
	envSysfs   = "SYSFS_PATH"
	envSocket  = "SOFTNIC_SOCKET"
	envVerbose = "SOFTNIC_VERBOSE"
)

// libraryName is how the name of the preload library begins, wherever it is.
const libraryName = "libsoftnic"

// Environ returns the environment of a program that is to see the device behind socket: the old one
// with the library before other preloads, but behind those that have to be first. A library that an outer `softnic
// exec` put there goes, so that there is one only.
func Environ(old, first []string, library, sysfs, socket string, verbose bool) []string {
	env := without(old, envPreload, envSysfs, envSocket, envVerbose)
	preload := strings.Join(append(first, library), ":")
	for _, lib := range preloads(old) {
		preload += ":" + lib
	}
	env = append(env, envPreload+"="+preload, envSysfs+"="+sysfs, envSocket+"="+socket)
	if verbose {
		env = append(env, envVerbose+"=1")
	}
	return env
}

// daemonEnviron is the environment of a daemon: nothing of an outer `softnic exec` reaches it.
func daemonEnviron(old []string) []string {
	env := without(old, envPreload, envSysfs, envSocket, envVerbose)
	if l := preloads(old); len(l) > 0 {
		env = append(env, envPreload+"="+strings.Join(l, ":"))
	}
	return env
}

// preloads are the libraries in LD_PRELOAD, without ours.
func preloads(env []string) []string {
	var value string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, envPreload+"="); ok {
			value = v
		}
	}
	l := strings.FieldsFunc(value, separates)
	return slices.DeleteFunc(l, func(lib string) bool { return strings.HasPrefix(filepath.Base(lib), libraryName) })
}

func separates(r rune) bool { return r == ':' || r == ' ' }

// preloadable reports whether a path can stand in LD_PRELOAD, where spaces and colons separate
// and $ begins a name that the loader replaces.
func preloadable(path string) bool { return !strings.ContainsAny(path, " :$") }

func without(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(names, name)
	})
}
