// Package control is how a running NIC is asked what it is and what it has
// done: HTTP with JSON over a Unix socket.
//
// The daemon (softnic run) serves it on PATH.ctl, where PATH is the socket
// that it was given or, without one, $XDG_RUNTIME_DIR/softnic.sock or
// softnic.sock in a folder of the user's own under the temporary directory
// (see DefaultPath). The program's show commands are its client, and curl may be
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
// Every answer is JSON with status 200, lists also where they have one entry. A
// failure is an Error with the status that fits: 404 for a path that does not
// exist, 405 for a method other than GET. Fields are only ever added within v1; a client ignores
// those that it does not know.
//
// # Who may ask
//
// The socket has mode 0600: the user who runs the daemon, and root. The folder
// that holds it by default has mode 0700 and must belong to that user.
//
// The package knows the device and nothing of the command line. It starts no
// daemon and never changes the device.
package control
