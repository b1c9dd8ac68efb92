// Package pingpong is the peer of the stock tools ibv_rc_pingpong and
// ibv_ud_pingpong, in both roles, and of itself with proof of the data.
//
// The command `softnic pingpong` calls Run with a device of its own. Two
// programs tell each other their addresses over TCP (Serve, Dial) and then send one
// message to and fro: each sends only after it has received, the client begins.
//
//	client                                             server
//	LLLL:QQQQQQ:PPPPPP:GID NUL (52 bytes)        --->
//	                                                   queue pair to RTR and RTS
//	                                             <---  the same 52 bytes of its own
//	done NUL (5 bytes)                           --->
//
// LID, queue pair number and first PSN are lower-case hexadecimal, the GID 32 such
// digits in network order.
//
// Every byte received is compared with what it must be (Pattern). The stock
// tools receive into the buffer that they send from, so that their server
// returns what it got: that carries a pattern of ours there and back.
//
// The package never uses the NIC for the exchange: that is the host's own TCP. It
// resolves no names beyond what package net does.
package pingpong
