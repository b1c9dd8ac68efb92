// Package clock is the time that the device and its links run by.
//
// Everything that waits takes a Clock, so that a program (replay, a scenario, a
// test) can run under virtual time. Engines do not: time is a parameter of
// their calls. A nil Clock in options means Real.
package clock
