//go:build !amd64

package icrc

// fold is there on amd64 only.
func fold(reg uint32, _ uint64, _ []byte) (uint32, bool) { return reg, false }

// foldCopy, too.
func foldCopy(reg uint32, _, _ []byte) (uint32, int) { return reg, 0 }
