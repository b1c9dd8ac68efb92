//go:build !linux

package bench

import "errors"

func (p *Pair) bridge(...string) error { return errors.New("--link tap: Linux alone has it") }
