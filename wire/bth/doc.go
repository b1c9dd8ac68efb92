// Package bth holds the InfiniBand transport headers as they stand on the
// wire: the base transport header, every extended header, the opcode table and
// PSN arithmetic.
//
// Headers are view types over byte slices. A view is made by slicing, after
// one length check against the opcode table (Info.Len); reading and writing
// fields neither allocates nor checks again.
//
// The codec (package wire), the engines (transport/...) and the tracer call
// it. It never looks at IP or UDP, never computes an ICRC and keeps no state.
package bth
