// Package trace reads captures of RoCE traffic: pcap and pcapng files as tcpdump, dumpcap,
// Wireshark, adapters' own tools and softnic's link/capture write them, from a file or a pipe, also
// through gzip.
//
//	r, err := trace.NewReader(file)
//	for {
//		p, err := r.Next()
//		if err == io.EOF { break }
//		kind := d.Decode(p.Link, p.Data, p.Length, &frame)
//	}
//
// A [Reader] gives the packets one after the other, as they stand in the file, in constant memory. A
// [Window] puts them into the order of time as far as they are out of it by little. A [Decoder]
// finds the RoCE packet in a frame of any of the usual link types, and [Exchanges] finds the connections
// that the tools tell each other over TCP.
//
// Package trace/report puts these together and has package trace/rules judge what they give; softnic trace
// is the command. interop/judge reads its captures with the Reader, and decodes them by code that
// shares nothing with this.
//
// # What it never does
//
// It writes no capture, holds no packet longer than the window, and judges nothing. A file may hold
// anything: what cannot be read is an [Error] that says where and why.
package trace
