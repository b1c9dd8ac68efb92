package rules

// answerCases are traces for the rules of responders, of XRC and CNP, and what cannot be known.
var answerCases = []scriptCase{
	// Answers.
	{name: "ACK for what was never sent", want: "response-range:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 105 msn=6`},
	{name: "ACK for what has not arrived", want: "response-range:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "ACK goes back", want: "ack-monotonic:4", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		B> ACK 100 msn=2`},
	{name: "ACK before many READs, of a duplicate", kept: "ack-monotonic", o: Options{Default: Attr{Depth: 16}}, lines: `
		A> SEND_ONLY 100 4 ar
		READS 101 12
		B> ACK 100 msn=13`},
	{name: "ACK before more READs than are remembered, of a duplicate", unk: "ack-monotonic", lines: `
		A> SEND_ONLY 100 4 ar
		READS 101 12
		B> ACK 100 msn=13`},
	{name: "ACK before a READ, of a duplicate", kept: "ack-monotonic", lines: `
		A> SEND_ONLY 100 4 ar
		A> READ 101 rlen=4
		B> ACK 100 msn=1 lost
		B> RR_O 101 4 msn=2 lost
		+70ms A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=2`},
	{name: "NAK names a later PSN", want: "nak-first-missing:5", unk: "gbn-sender", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 102 syn=nak msn=1
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "NAK names an earlier PSN", want: "nak-first-missing:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 100 syn=nak msn=1
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "NAK without a gap", from: "A", want: "nak-first-missing:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=nak msn=1`},
	{name: "NAK for a gap of one moment", from: "B", unk: "nak-first-missing", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 104 4 ar
		+0s A> SEND_ONLY 101 4 ar
		+0s B> ACK 101 msn=2
		+0s B> ACK 102 syn=nak msn=2`},
	{name: "NAK for what was behind an earlier gap", from: "B", want: "nak-first-missing:8", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 104 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		B> ACK 102 syn=nak msn=2`},
	{name: "two NAKs for a gap", want: "nak-once-per-gap:6", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		B> ACK 101 syn=nak msn=1`},
	{name: "MSN goes back", want: "msn:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=4`},
	{name: "MSN counts too few", want: "msn:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=5`},
	{name: "MSN counts too many", want: "msn:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=7`},
	{name: "MSN counts a part of a message", want: "msn:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_FIRST 101 256 ar
		B> ACK 101 msn=6`},

	// XRC.
	{name: "XRC", kept: "psn-contiguous read-response-sequence msn", lines: `
		XRC
		A> SEND_ONLY 100 4 ar srqn=5
		B> ACK 100 msn=1
		A> READ 101 rlen=4
		B> RR_O 101 4 msn=2`},
	{name: "XRC, another SRQ the second time", want: "retransmission-same:4", lines: `
		XRC
		A> SEND_ONLY 100 4 ar srqn=5
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar srqn=5 lost
		+70ms A> SEND_ONLY 101 4 ar srqn=6`},

	// CNP.
	{name: "CNP", from: "B", kept: "cnp-format cnp-pacing", o: Options{CNPInterval: 4000}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		A> SEND_ONLY 101 4 ce
		B> CNP 0`},
	{name: "CNP with a PSN", from: "B", want: "cnp-format:2", lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 5`},
	{name: "CNP for nothing", from: "B", want: "cnp-pacing:4", lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		+101ms B> CNP 0
		B> CNP 0`},
	{name: "CNP for nothing, or for a packet from before the capture", from: "B", unk: "cnp-pacing", lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		B> CNP 0`},
	{name: "CNPs for packets from before the capture, before any that was marked", from: "B", unk: "cnp-pacing", lines: `
		A> SEND_ONLY 100 4
		B> CNP 0
		B> CNP 0
		A> SEND_ONLY 101 4 ce
		B> CNP 0`},
	{name: "a CNP for a packet from before the capture is none too many later", from: "B", o: Options{CNPInterval: 4000}, unk: "cnp-pacing", lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		A> SEND_ONLY 101 4
		+1s A> SEND_ONLY 102 4 ce
		A> SEND_ONLY 103 4 ce
		B> CNP 0
		B> CNP 0
		B> CNP 0`},
	{name: "CNPs for packets that the capture has cut", from: "B", lines: `
		A> SEND_ONLY 100 4 ce
		+1s A> SEND_ONLY 101 4 ce cut
		A> SEND_ONLY 102 4 ce cut
		B> CNP 0
		B> CNP 0
		B> CNP 0`},
	{name: "a CNP held back is one", from: "B", kept: "cnp-pacing", o: Options{CNPInterval: 4000}, lines: `
		A> SEND_ONLY 100 4
		A> SEND_ONLY 101 4
		+1s A> SEND_ONLY 102 4 ce
		B> CNP 0 held
		+1ms B> CNP 0 released`},
	{name: "CNP too soon", from: "B", want: "cnp-pacing:4", o: Options{CNPInterval: 50000}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		A> SEND_ONLY 101 4 ce
		B> CNP 0`},
	{name: "CNPs to two queue pairs, one interval for a pair of addresses", from: "B", want: "cnp-pacing:4", o: Options{CNPInterval: 50000}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		C> SEND_ONLY 100 4 ce
		D> CNP 0`},
	{name: "CNPs to two queue pairs, one interval for each", from: "B", kept: "cnp-pacing", o: Options{CNPInterval: 50000, CNPMode: CNPPerQP}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		C> SEND_ONLY 100 4 ce
		D> CNP 0`},
	{name: "CNP too soon for its queue pair", from: "B", want: "cnp-pacing:6", o: Options{CNPInterval: 50000, CNPMode: CNPPerQP}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		C> SEND_ONLY 100 4 ce
		D> CNP 0
		A> SEND_ONLY 101 4 ce
		B> CNP 0`},
	{name: "CNPs from two addresses, one interval for a pair of addresses", from: "B", kept: "cnp-pacing", o: Options{CNPInterval: 50000}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		E> SEND_ONLY 100 4 ce
		F> CNP 0`},
	{name: "CNPs from two addresses, one interval for a destination", from: "B", want: "cnp-pacing:4", o: Options{CNPInterval: 50000, CNPMode: CNPPerDest}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		E> SEND_ONLY 100 4 ce
		F> CNP 0`},
	{name: "CNPs to two addresses, one interval for a destination", from: "B", kept: "cnp-pacing", o: Options{CNPInterval: 50000, CNPMode: CNPPerDest}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		G> SEND_ONLY 100 4 ce
		H> CNP 0`},
	{name: "CNPs to two addresses, one interval for the port", from: "B", want: "cnp-pacing:4", o: Options{CNPInterval: 50000, CNPMode: CNPPerPort}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		G> SEND_ONLY 100 4 ce
		H> CNP 0`},
	{name: "CNPs of a port apart", from: "B", kept: "cnp-pacing", o: Options{CNPInterval: 50000, CNPMode: CNPPerPort}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		+50us G> SEND_ONLY 100 4 ce
		H> CNP 0`},
	{name: "CNP seen at its receiver", from: "A", unk: "cnp-pacing", lines: `
		A> SEND_ONLY 100 4
		B> CNP 0`},

	// Time.
	{name: "time goes back", from: "A", want: "timestamps:3", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		-5ms A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "time goes back a little", from: "A", unk: "timestamps", kept: "psn-contiguous msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		-900us A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "time goes back during a wait", from: "A", want: "timestamps:4", unk: "ack-timeout", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		-2s A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "time goes back during an RNR wait", from: "A", want: "timestamps:3", unk: "rnr-wait", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=rnr20 msn=0
		-5ms A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1`},
	{name: "time goes back between CNPs", from: "B", want: "timestamps:3", unk: "cnp-pacing", o: Options{CNPInterval: 4000}, lines: `
		A> SEND_ONLY 100 4 ce
		B> CNP 0
		-5ms A> SEND_ONLY 101 4 ce
		B> CNP 0`},

	// What cannot be known.
	{name: "answers only", from: "?", unk: "response-range", lines: `
		B> ACK 100 msn=1
		B> ACK 101 msn=2
		B> RR_O 102 4 msn=3`},
	{name: "requests only", from: "?", unk: "gbn-sender", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		A> READ 102 rlen=5000
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar`},
	{name: "begins in a round", unk: "gbn-sender", lines: `
		A> SEND_ONLY 105 4 ar
		A> SEND_ONLY 103 4 ar
		A> SEND_ONLY 104 4 ar
		B> ACK 104 msn=50`},
	{name: "begins with what is on its way", unk: "response-range", lines: `
		B> ACK 98 msn=10
		A> SEND_ONLY 101 4 ar
		B> ACK 99 msn=11
		B> ACK 101 msn=13`},
	{name: "begins in the middle of a gap", from: "B", lines: `
		A> SEND_ONLY 105 4 ar
		B> ACK 103 syn=nak msn=9
		A> SEND_ONLY 103 4 ar
		A> SEND_ONLY 104 4 ar
		A> SEND_ONLY 105 4 ar
		B> ACK 105 msn=12`},
	{name: "ACK of what the capture has lost", from: "?", unk: "response-range", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		B> ACK 101 msn=2`},
	{name: "MTU not known", lines: `
		A> READ 100 rlen=600
		B> RR_L 102 88 msn=1
		A> SEND_ONLY 103 4 ar
		B> ACK 103 msn=2`, unk: "response-range", kept: "psn-contiguous", from: "A"},
	{name: "two connections with the same PSNs", from: "?", unk: "response-range", kept: "", lines: `
		A> SEND_ONLY 100 4 ar
		C> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		D> ACK 100 msn=7`},
	{name: "two connections with other PSNs", from: "?", kept: "ack-monotonic", lines: `
		A> SEND_ONLY 100 4 ar
		C> SEND_ONLY 900 4 ar
		B> ACK 100 msn=1
		D> ACK 900 msn=7
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3
		A> SEND_ONLY 103 4 ar
		B> ACK 103 msn=4`},
	{name: "the connection begins anew", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar fill=1
		B> ACK 101 msn=2
		+1s A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1`},
	{name: "another connection on the queue pair", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=9
		+1s A> SEND_ONLY 0x500000 4 ar
		B> ACK 0x500000 msn=1
		A> SEND_ONLY 0x500001 4 ar
		B> ACK 0x500001 msn=2`},
	{name: "held back and let go", lines: `
		A> SEND_ONLY 100 4 ar held
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=nak msn=0
		B> ACK 100 msn=1`},
	{name: "held back while it was sent again", from: "A", kept: "gbn-sender retransmission-same", lines: `
		A> SEND_ONLY 99 4 ar
		B> ACK 99 msn=1
		A> SEND_ONLY 100 4 ar held
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=nak msn=1
		A> SEND_ONLY 100 4 ar round=1
		A> SEND_ONLY 101 4 ar round=1
		A> SEND_ONLY 100 4 ar
		B> ACK 101 msn=3`},
	{name: "held back while it was sent again, and the sender does not say so", from: "A", want: "gbn-sender:7", lines: `
		A> SEND_ONLY 99 4 ar
		B> ACK 99 msn=1
		A> SEND_ONLY 100 4 ar held
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=nak msn=1
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 100 4 ar
		B> ACK 101 msn=3`},
	{name: "doubled on purpose", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 100 4 ar copied
		B> ACK 100 msn=1`},
}
