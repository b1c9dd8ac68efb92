//go:build !linux

package main

import (
	"errors"
	"io"
)

func become([]string, string, bool, bool, io.Writer) error {
	return errors.New("softnic exec works on Linux only: use a Linux container or virtual machine")
}
