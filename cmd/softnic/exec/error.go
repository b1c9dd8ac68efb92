package exec

// The exit codes of a program that could not be started, as the shell and env have them.
const (
	CodeCannotRun = 126
	CodeNotFound  = 127
)

// Error is a failure with an exit code of its own.
type Error struct {
	Code int
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what went wrong.
func (e *Error) Unwrap() error { return e.Err }
