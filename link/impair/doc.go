// Package impair holds the rules by which a port loses, doubles, delays and
// reorders packets on purpose: all of a kind, some by chance, or exactly one.
//
// A rule is one line of words in any order after the first:
//
//	tx qp=1 opcode=WRITE_MIDDLE psn=+5 round=1 drop
//	rx drop=1% seed=7
//	tx delay=5ms
//	rx opcode=ACKNOWLEDGE,ATOMIC* duplicate nth=10
//
// The first word is the direction, tx or rx, seen from the NIC. One word is the action:
//
//	drop         lose the packet
//	duplicate    let it through twice
//	delay=TIME   hold it back for so long (5ms, 20us)
//	reorder      hold it back until the next packet of the direction has passed, 10 ms at most
//
// An action takes a probability as drop=1% or, the same, as a word of its own: p=1%.
// The other words say which packets; all must hold:
//
//	qp=0x1234    destination QP of the packet, as the tools print it
//	qp=17        the same in decimal, from 16 on
//	qp=#2        the second connection (address of the peer, destination QP) that the
//	             rule has seen; QP 1 and multicast do not count. Below 16 the # can be left
//	             out, qp=2, since no ordinary QP of a real NIC has such a number;
//	             QP 1 itself is qp=0x1
//	opcode=A,B*  names as captures show them, with or without RC_, UC_, ...; a * at the end
//	             stands for any ending
//	psn=0x1234   this PSN
//	psn=+5       the PSN five after the first that the rule has seen on the connection
//	round=2      second time that the PSN is seen on the connection
//	nth=10       of the packets for which all of the above holds, every tenth
//	p=1%         of these, one in a hundred by chance
//	seed=7       for p; default 1. Each rule has its own generator: with the same seed
//	             and the same traffic the same packets are hit
//	count=3      stop after three hits
//
// First PSN and round are counted separately for requests and responses, whose PSNs
// have nothing to do with each other. They are counted from the moment when the rule was
// added, over all packets of its direction, also those that it does not hit. A rule
// remembers at least the last 8192 PSNs of each of the first 1024 connections; further
// connections never match a relative word.
//
// Rules work in the order in which they were added. What one drops the others do not
// hit, but they count it for first PSN and round. Delays add up.
//
// A port calls the package for each packet while there are rules for its direction. The
// package never touches a packet, waits for nothing and never looks at payload.
package impair
