// Package picture draws a conversation of two queue pairs: PSN over time, each kind of packet with a mark and
// a colour of its own. softnic trace --picture calls it with what package trace/report has collected.
//
// It knows no packet and judges nothing.
package picture
