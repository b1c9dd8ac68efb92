package trace

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Input is a capture to be read.
type Input struct {
	Name string // that errors have
	R    io.Reader
}

// Open opens the capture file of a name; "-" is stdin, which is called stdin. The error is a *FileError.
func Open(name string, stdin io.Reader) (in Input, done func() error, err error) {
	if name == "-" {
		return Input{"stdin", stdin}, func() error { return nil }, nil
	}
	f, err := os.Open(name)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return Input{}, nil, &FileError{name, err}
	}
	return Input{name, f}, f.Close, nil
}

// FileError is a capture that cannot be read, or has nothing in it that is looked for.
type FileError struct {
	Name string
	Err  error
}

// Error is one line.
func (e *FileError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }
