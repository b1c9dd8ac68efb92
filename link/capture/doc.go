// Package capture records what passes a port: Writer as a pcapng file with the verdict on
// each packet, Log as lines of JSON for tests, Tee for several at once, coming
// and going while the port runs.
//
// The program and tests make a link.Sink here and hand it to a port. A Writer never holds
// traffic up: what it cannot write in time is not in the file, and the file and
// the log say how much that was. Nothing here ever looks at a packet except for
// the BTH and AETH in Log, and nothing is read back: package trace does that.
package capture
