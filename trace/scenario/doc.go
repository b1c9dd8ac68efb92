// Package scenario reads and plays scenarios: texts that say what a program calls, what the peer sends and what the NIC
// must send, when. docs/scenario.md is the manual of the language.
//
//	s, err := scenario.Parse("read.roce", text)
//	r, err := s.Play(nil)
//	if r.Failure != nil { ... }
//
// softnic replay plays them, and so do tests. The NIC is that of package stage, under virtual time: a scenario gives the
// same result everywhere, whatever the machine does.
//
// The package guesses nothing: what a line does not say is not compared, what no line expects is a failure. It opens no file.
package scenario
