// Package cases holds softnic's behavioural tests: one for each case that a
// public bug report taught (TestCaseNN_Name; what each restates is written at its head),
// and tables for the rules of the RC and UD services.
//
// A test opens a device on an in-memory link. The scripted peer of
// interop/peer is at the other end: it injects wire bytes and reads what the
// device emits, with a header codec and an ICRC of its own. Every frame that the device
// emits is checked for regularity and ICRC, whatever the test is about. Completions,
// asynchronous events and counters are asserted beside the frames.
//
// Everything with a timer runs inside a testing/synctest bubble: virtual time,
// exact deadlines, no real sleep. Where a case asks for the UDP backend, the test
// runs on UDP 4791 of 127.0.0.4 and 127.0.0.5.
//
// Large counts of the cases are reduced so that the package takes seconds; each
// reduced number is said in a comment and in the test log.
//
// interop/mutants breaks named rules of the engines, one at a time, and has these
// tests find out.
package cases
