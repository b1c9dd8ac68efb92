// Package impair holds the rules by which a port loses, doubles, delays, reorders, spoils and
// rewrites packets on purpose, and answers them with NAKs of its own: all of a kind, some by chance, or exactly one.
//
// A rule is one line of words in any order after the first:
//
//	tx qp=1 opcode=WRITE_MIDDLE psn=+5 round=1 drop
//	rx drop=1% seed=7
//	tx delay=5ms
//	rx opcode=ACKNOWLEDGE,ATOMIC* duplicate nth=10
//	tx opcode=SEND_ONLY count=1 corrupt
//	tx opcode=ACKNOWLEDGE set=msn:-1
//	rx peer=10.0.0.2 opcode=WRITE* count=3 answer=rnr:1
//
// The first word is the direction, tx or rx, seen from the NIC. One word is the action:
//
//	drop         lose the packet
//	duplicate    let it through twice
//	delay=TIME   hold it back for so long (5ms, 20us)
//	reorder      hold it back until the next packet of the direction has passed, 10 ms at most
//	corrupt      turn bits of one byte over; the ICRC stays as it was and is wrong then
//	ecn=ce       make its ECN bits so: ce is the mark of a congested router; not-ect, ect0, ect1
//	set=FIELD:VALUE,...  write other values into header fields: psn:0x12, or psn:+1, psn:-1 for a difference.
//	             Packets that lack a field are not meant. The ICRC is made right again
//	answer=NAK   lose the packet, a request of RC or XRC, and have its sender get an answer as if from its
//	             receiver: nak-sequence, nak-invalid, nak-access, nak-op, rnr (timer code 14) or rnr:CODE.
//	             Until the request comes again and passes, what is behind it on its connection is not meant
//
// Those without a value take a probability as drop=1% or, the same, as a word of its own: p=1%.
// More words for corrupt and set:
//
//	at=12        which byte: counted from the BTH on, or with at=-1 back from the end of payload and pad; by chance otherwise
//	xor=0x80     which of its bits; by chance otherwise
//	icrc=good    the ICRC is made right again: who receives it cannot tell
//	icrc=bad     it is left as it was
//
// The fields of set are, by header:
//
//	BTH        opcode se migreq pad tver pkey fecn becn resv6 dqp ackreq resv7 psn
//	RETH       va rkey length          AtomicETH  va rkey swap compare
//	AETH       syndrome msn            AtomicAckETH  original
//	DETH       qkey sqp                ImmDt, IETH, XRCETH  imm, invkey, srqn
//
// The other words say which packets; all must hold:
//
//	qp=0x1234    destination QP of the packet, as the tools print it
//	qp=17        the same in decimal, from 16 on
//	qp=#2        the second connection (address of the peer, destination QP) that the
//	             rule has seen; QP 1 and multicast do not count. Below 16 the # can be left
//	             out, qp=2, since no ordinary QP of a real NIC has such a number;
//	             QP 1 itself is qp=0x1
//	peer=10.0.0.2    address of the other end, or all of a network, as peer=10.0.0.0/24
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
// hit, but they count it for first PSN and round. Delays add up; of two marks the later holds; changes are made one after the other.
//
// A port calls the package for each packet while there are rules for its direction, and Change.Do where one says so. The package
// waits for nothing, and Apply never looks beyond the BTH.
package impair
