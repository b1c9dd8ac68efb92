// Package dgram is what unreliable datagrams and raw frames have in common: a request is one packet and completes when that
// has left, a packet takes one receive. transport/ud and transport/raw are built on it; nobody else calls it. It knows no
// header.
package dgram
