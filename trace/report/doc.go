// Package report tells what a capture of RoCE traffic shows: the file, the conversations of queue pairs, and the
// verdict on every rule of package trace/rules. softnic trace calls it.
//
//	r, err := report.Analyze([]trace.Input{{Name: "x.pcap", R: file}}, report.Options{})
//	r.Text(os.Stdout)              // for people
//	json.NewEncoder(w).Encode(r)   // stable names: docs/trace.md
//
// The packets come in the order of time (trace.Stream), go to the checker, and
// by what the checker took them for into the tables: a frame that was seen twice counts once, a retransmission
// has the cause that the verdicts go by.
//
// # Whether a capture is complete
//
// The verdicts "broken" of many rules hang on that the capture lost nothing. Only a capture that tells where its packets
// were seen, and of each interface that all that came is there, is taken for complete: those of softnic do. As this
// stands at the end of a file, two checkers look at such a capture, one for each case.
//
// It reads what it is given in one pass, in bounded memory, and writes nothing but text.
package report
