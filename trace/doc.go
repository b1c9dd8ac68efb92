// Package trace reads captures of RoCE traffic: pcap and pcapng files as tcpdump, dumpcap,
// Wireshark, adapters' own tools and softnic's link/capture write them, from a file or a pipe, also
// through gzip.
//
//	s, err := trace.NewStream([]trace.Input{{Name: "x.pcap", R: file}}, trace.StreamOptions{})
//	for {
//		p, err := s.Next()
//		if err != nil { break } // io.EOF, or why not
//		fault := p.View(&v)
//	}
//
// A [Stream] gives the RoCE packets of captures, in the order of time, in constant memory, each with what a softnic's capture
// says of it beside its bytes: its [Word]. It stands on a [Reader], which gives the packets as they stand in a file, and
// a [Decoder], which finds the RoCE packet in a frame of any of the usual link types. [Exchanges] finds the connections
// that the tools tell each other over TCP.
//
// Package trace/report has package trace/rules judge what a Stream gives, package trace/replay plays it against a NIC: softnic
// trace and softnic replay are the commands, which read the same, and fail in the same words. interop/judge reads its captures
// with the Reader, and decodes them by code that shares nothing with this.
//
// # What it never does
//
// It writes no capture, holds no packet longer than the window, and judges nothing. A file may hold
// anything: what cannot be read is an [Error] that says where and why.
package trace
