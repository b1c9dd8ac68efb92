// Package control is how a running NIC is asked what it is and what it has
// done, and how its network is changed and captured: HTTP with JSON over a Unix socket.
//
// The daemon (softnic run) serves it on PATH.ctl, where PATH is the socket
// that it was given or, without one, $XDG_RUNTIME_DIR/softnic.sock or
// softnic.sock in a folder of the user's own under the temporary directory
// (see DefaultPath). The program's commands show, impair and capture are its client, and curl may be
// another:
//
//	curl --unix-socket $XDG_RUNTIME_DIR/softnic.sock.ctl http://softnic/v1/link
//
// # Resources
//
//	GET /v1/daemon     Daemon: who serves
//	GET /v1/dev        []Dev: the device, as `rdma -j dev show` has it
//	GET /v1/link       []Link: the port with its addresses
//	GET /v1/statistic  []Statistic: the counters of the port, by name
//	GET /v1/statistic/qp  []Statistic: those of each queue pair
//	GET /v1/qp         []QP: the queue pairs
//
//	GET /v1/impair     []impair.Status: the impairment rules, in order, with what they have hit
//	POST /v1/impair    takes a Rule, adds it and answers with its impair.Status
//	DELETE /v1/impair/ID  removes a rule; without ID all of them
//
//	GET /v1/capture?qp=17&peer=10.0.0.2&opcode=SEND*
//	                   a pcapng file of what passes from now on, see package link/capture. It goes on until the
//	                   client leaves, or until DELETE /v1/capture/ID, with the ID of the header Softnic-Capture; then it ends with
//	                   how many packets are missing
//
// Every other answer is JSON with status 200 (201 for what was added, 204 and nothing for what was removed), lists also where they
// have one entry. A failure is an Error with the status that fits: 400 for what cannot be understood, 404 for a path or
// an ID that does not exist, 405 for a method that a path does not have. Fields are only ever added within v1; a client ignores
// those that it does not know.
//
// # Who may ask
//
// The socket has mode 0600: the user who runs the daemon, and root. The folder
// that holds it by default has mode 0700 and must belong to that user.
//
// The package knows the device and nothing of the command line. It starts no
// daemon and never changes the device: only what its link does to packets.
package control
