//go:build !linux

package tap

import (
	"errors"
	"runtime"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
)

// Tap cannot be made on this system; see Open.
type Tap struct{ link.Endpoint }

// Open always fails: TAP interfaces are made on Linux only.
func Open(Config) (*Tap, error) {
	return nil, errorOf(errors.ErrUnsupported, "tap: TAP interfaces are made on Linux only, this is %s: use UDP mode (softnic run --udp ADDR)", runtime.GOOS)
}

// Release does nothing here.
func (t *Tap) Release() (warning string, err error) { return "", nil }

// Counters returns nothing here.
func (t *Tap) Counters() []stats.Value { return nil }
