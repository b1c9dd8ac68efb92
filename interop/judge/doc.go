// Package judge looks at captures after a lab run and says which frames are wrong.
//
// The VM lab leaves captures and logs in a folder; on the host,
//
//	SOFTNIC_JOB=/that/folder go test -count=1 ./interop/judge
//
// judges every capture in it, one subtest a file. Other tests call [File],
// [AgainstTshark], [AgainstLog] or [All] on captures of their own. Three questions
// are asked of a capture, and none of the answers comes from softnic's own codecs
// (package trace takes the file apart into frames, no more):
//
//   - Is every RoCE frame well-formed, with the right ICRC? The peer package says,
//     which shares no code with the product. Files whose name contains "injected"
//     hold frames that were made wrong on purpose and are exempt; in files whose
//     name contains "flushquirk" a FLUSH may have the kernel driver's own ICRC.
//   - Does tshark read the same fields in it as the peer package? (Of some opcodes it
//     reads the BTH alone: the table undissected says which, and why.)
//   - If a softnic packet log lies beside it, are the frames in the capture, in
//     each direction, those of the log?
//
// Besides, TestEveryOpcode makes a capture of its own, with every opcode that softnic's
// engines emit, and asks the same of it; TestGoldenAsTshark asks it of the golden captures
// (package corpus). They need tshark, and no VM.
//
// The log of capture X.pcap is X.log.jsonl. Its first line gives softnic's
// addresses; a frame with one of them as its source is one that softnic sent. The
// others are one frame each, in order of time:
//
//	{"addr":["10.8.0.2","fe80::2"]}
//	{"dir":"tx","op":"SEND_ONLY","qpn":17,"psn":123,"cause":"first"}
//	{"dir":"rx","op":"ACKNOWLEDGE","qpn":18,"psn":123,"syndrome":31}
//
// Lines with the dir impaired or dropped are passed over: such a frame was not sent.
//
// qpn is the destination queue pair in the frame. syndrome belongs to frames that
// have an AETH. Names of operations are those of peer.Op with or without the
// service in front, or in the longer spelling of the kernel's headers
// (RC_SEND_ONLY_WITH_IMMEDIATE), or a number. Further fields are not looked at.
//
// # What it never does
//
// It changes no file, installs nothing, and judges no behaviour: whether a frame
// should have been sent at all is for tests with the scripted peer, and for
// softnic trace.
package judge
