//go:build unix

package device_test

import (
	"os"

	"github.com/softnic/softnic/device"
)

func init() {
	mapWalkFile = func(path string, n int) (mapped, error) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := f.Truncate(int64(n)); err != nil {
			return nil, err
		}
		return device.MapFile(f, n)
	}
}
