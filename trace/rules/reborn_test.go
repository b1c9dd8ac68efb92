package rules

// rebornCases are traces in which a queue pair is connected anew after a NAK, with PSNs of the connection before, and those that only
// look so.
var rebornCases = []scriptCase{
	{name: "connected anew after an RNR NAK, with the same first PSN", unk: "retransmission-same", kept: "msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+200ms A> WRITE_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> WRITE_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "the same, further on in both", unk: "gbn-sender", kept: "msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=1
		+200ms A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar fill=1
		B> ACK 101 msn=2`},
	{name: "the same, without an answer", unk: "gbn-sender", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=1
		+200ms A> SEND_ONLY 100 4 ar`},
	{name: "connected anew, and the capture has not the first PSN of the connection before", kept: "msn", lines: `
		A> SEND_ONLY 103 4 ar
		B> ACK 103 msn=4
		A> SEND_ONLY 104 4 ar
		B> ACK 104 syn=rnr20 msn=4
		+200ms A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=1
		A> SEND_ONLY 103 4 ar fill=1
		B> ACK 103 msn=2`},
	{name: "connected anew, and begins with the same request", unk: "retransmission-same", lines: `
		A> SEND_ONLY 100 4
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+200ms A> SEND_ONLY 100 4
		A> SEND_ONLY 101 4 ar fill=1
		B> ACK 101 msn=2`},
	{name: "connected anew after an RNR NAK, and the request is made again with its PSN", unk: "msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=5
		+200ms A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=1
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=2`},
	{name: "the MSN goes back after an RNR NAK, to more than a new connection can count", want: "msn:6", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=5
		+11ms A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "connected anew after a NAK that ends the connection", unk: "read-resume", lines: `
		A> READ 100 rlen=4
		B> ACK 100 syn=0x62 msn=0
		+1ms A> READ 100 rlen=8 va=0x2000
		B> RR_O 100 8 msn=1`},
	{name: "sent again as it was, once there was a receive", kept: "retransmission-same gbn-sender rnr-wait msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=1
		+11ms A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "another request after an RNR NAK, and the MSN goes on", want: "retransmission-same:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=1
		+11ms A> WRITE_ONLY 101 4 ar
		B> ACK 101 msn=2
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "another payload after an RNR NAK, captured at the requester", from: "A", want: "retransmission-same:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=4
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=4
		+11ms A> SEND_ONLY 101 4 ar fill=1
		B> ACK 101 msn=5`},
	{name: "another payload after an RNR NAK, captured at the responder", from: "B", want: "retransmission-same:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=4
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=4
		+11ms A> SEND_ONLY 101 4 ar fill=1
		B> ACK 101 msn=5`},
	{name: "another payload after an RNR NAK, and a NAK with the MSN of before", want: "retransmission-same:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=4
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=4
		+11ms A> WRITE_ONLY 101 4 ar
		B> ACK 101 syn=0x62 msn=4`},
	{name: "another request after an RNR NAK, and an MSN of neither connection", unk: "retransmission-same", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=9
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=9
		+11ms A> WRITE_ONLY 101 4 ar
		B> ACK 101 msn=7`},
	{name: "another request after an RNR NAK in a capture that may lack the new connection's first packets", from: "?", unk: "retransmission-same", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=4
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=4
		+11ms A> WRITE_ONLY 101 4 ar
		B> ACK 101 syn=0x62 msn=4`},
	{name: "another request behind one that got an RNR NAK", want: "retransmission-same:7", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=7
		A> SEND_ONLY 101 4
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=rnr20 msn=7
		+11ms A> SEND_ONLY 101 4
		A> SEND_ONLY 102 4 ar fill=1
		B> ACK 102 msn=9`},
	{name: "too far back after an RNR NAK, and the MSN goes on", want: "gbn-sender:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=7
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=7
		+11ms A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=7`},
	{name: "another key of a READ after a NAK that ends the connection", want: "read-resume:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=7
		A> READ 101 rlen=4
		B> ACK 101 syn=0x62 msn=7
		+1ms A> READ 101 rlen=4 key=8
		B> RR_O 101 4 msn=8`},
	{name: "another request after an acknowledgement that followed the RNR NAK", want: "retransmission-same:9", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 syn=rnr20 msn=1
		+11ms A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		A> SEND_ONLY 102 4 ar
		A> SEND_ONLY 103 4 ar lost
		+70ms A> SEND_ONLY 102 4 ar fill=1`},
	{name: "an RNR NAK that may be to either of two connections", from: "?", unk: "retransmission-same", lines: `
		A> SEND_ONLY 100 4 ar
		C> SEND_ONLY 900 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+200ms A> WRITE_ONLY 100 4 ar`},
}
