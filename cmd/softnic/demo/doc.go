// Package demo shows in a few seconds what softnic is: two NICs in one process
// that talk RoCEv2 over the loopback interface, run every operation, lose packets on
// purpose and recover, and leave a capture of it.
//
// The command `softnic demo` calls Run. Nothing is taken on trust: every byte that
// arrives is compared with its seeded pattern, and what lies behind it must be untouched;
// each fault must have the effect that it is there for; and the ICRC of every
// frame of the capture file is computed once more, from the file, bit by bit
// (icrc.go shares no code with package wire/icrc).
//
// It needs no privileges and no set-up. Where UDP port 4791 cannot be had it uses a link
// in memory and says so.
package demo
