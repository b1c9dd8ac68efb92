//go:build !amd64

package icrc

// fold is there on amd64 only.
func fold(reg uint32, _ []byte) (uint32, int) { return reg, 0 }
