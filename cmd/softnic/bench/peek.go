package bench

// peek reads a byte that a peer may be writing: the way in which ib_write_lat waits. For the race detector that is
// a race, as it would be with any adapter, if it saw it; nothing else is read before a completion tells that it may be.
// It is not inlined, so that it is read each time.
//
//go:norace
//go:noinline
func peek(b *byte) byte { return *b }
