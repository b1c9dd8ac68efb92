// Package rc is the reliable connection service: requester and responder of
// one queue pair as a state machine without I/O.
//
// Machine joins the two halves. The requester (requester.go, retry.go,
// response.go) turns send work requests into packets, keeps them until they
// are acknowledged and sends them again when they are not. The responder
// (responder.go, execute.go, replies.go) executes requests in PSN order and answers
// through one ordered queue.
//
// Where to look for a rule:
//
//	segmentation, AckReq, window, fence, initiator depth   requester.go
//	go-back-N, ACK timer, retry_cnt, RNR wait, rnr_retry   retry.go
//	ACK, NAK, READ responses as the requester sees them    response.go
//	PSN check, NAK once per gap, duplicates, depth         responder.go
//	opcode sequence, lengths, keys, execution              execute.go
//	ordered response queue, coalesced ACKs, READ replies   replies.go
//
// The device calls a Machine under the queue pair's lock; see package transport for the
// contract. The machine never blocks, never reads a clock and never sends.
package rc
