package preload

import (
	"embed"
	"errors"
)

// All of the folder, since a pattern that names the library does not compile in a clean clone.
//
//go:embed lib
var lib embed.FS

// Library returns the bytes of libsoftnic.so.
func Library() ([]byte, error) {
	b, err := lib.ReadFile("lib/libsoftnic.so")
	if err != nil {
		return nil, errors.New("the preload library is not built in: run `make build` and use bin/softnic")
	}
	return b, nil
}
