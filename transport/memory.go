package transport

import "errors"

// Access is a set of access rights; values as enum ibv_access_flags.
type Access uint32

// The access rights. Local read is always given.
const (
	LocalWrite   Access = 1 << 0 // receives, READs and results of atomics are stored
	RemoteWrite  Access = 1 << 1 // WRITE, ATOMIC WRITE
	RemoteRead   Access = 1 << 2 // READ
	RemoteAtomic Access = 1 << 3 // the four operations of Atomic
	MWBind       Access = 1 << 4 // memory windows are bound
	ZeroBased    Access = 1 << 5 // addresses count from 0

	FlushGlobalAccess     Access = 1 << 8 // FLUSH of type FlushGlobal
	FlushPersistentAccess Access = 1 << 9 // FLUSH of type FlushPersistent
)

// ErrGone is the error of Memory whose owner has ended: nobody is left to hear of it. What comes for it is
// dropped without an answer, until the queue pair goes too; the peer finds that nobody is there.
var ErrGone = errors.New("the owner of the memory has ended")

// Extent is one piece of a vectored access.
type Extent struct {
	VA  uint64 // first address, as the registration counts
	Buf []byte // as many bytes as the access has
}

// Memory is what stands behind a key: a Go slice, a mapped file, another
// process. Addresses are those of the registration. Callers stay within the bounds that
// they looked up; Memory may still fail (another process unmapped it).
//
// Implementations are safe for concurrent use. Their methods do not call the device: invalidations
// wait for them.
type Memory interface {
	// Slices appends to dst the bytes of [va, va+n) where they can be touched
	// directly; ok is false, and dst unchanged, where ReadV and WriteV must be used.
	Slices(dst [][]byte, va uint64, n int) (out [][]byte, ok bool)
	// ReadV fills, WriteV stores, all extents with as few calls as possible.
	ReadV(e []Extent) error
	WriteV(e []Extent) error
	// Atomic64 and Store64 act on the 8 aligned bytes at va, in host byte order,
	// atomically against each other and, on Go memory, against sync/atomic. They fail at an address that 8 does not divide.
	Atomic64(va uint64, a *Atomic) (old uint64, err error)
	Store64(va, v uint64) error
}

// Persistent is Memory that outlives the power.
type Persistent interface {
	// Persist returns when the n bytes at va do; n may be 0.
	Persist(va, n uint64) error
}

// Region is a Memory that was looked up by a key, for one access. The access runs until Release, or
// until Park: then the registration is still held, but the key may be invalidated, and who
// invalidates it need not wait. Resume goes on with the access; it is false when the key has been invalidated.
// A parked access that is not needed any more ends with Discard. Accesses to one registration have Regions that are equal (==).
type Region interface {
	Memory
	Release()     // ends an access that runs
	Park()        // makes one that runs wait
	Resume() bool // has one that waits run, unless it is false
	Discard()     // ends one that waits
}

// CopyIn stores src at va of m. scratch keeps slices for the next call. The error is that of m.
func CopyIn(m Memory, va uint64, src []byte, scratch *Scratch) error {
	if len(src) == 0 {
		return nil
	}
	if s, ok := m.Slices(scratch.slices[:0], va, len(src)); ok {
		for _, d := range s {
			src = src[copy(d, src):]
		}
		scratch.keep(s)
		return nil
	}
	scratch.extents = append(scratch.extents[:0], Extent{va, src})
	err := m.WriteV(scratch.extents)
	scratch.extents[0] = Extent{}
	return err
}

// Scratch holds the slices that calls through an interface would otherwise
// allocate. The zero value is ready; one goroutine at a time uses it.
type Scratch struct {
	slices  [][]byte
	extents []Extent
}

func (s *Scratch) keep(l [][]byte) {
	clear(l)
	s.slices = l[:0]
}

// Gone is what Scatter returns for ErrGone. It is never the status of a completion.
const Gone Status = 255

func failure(err error) Status {
	if err == ErrGone {
		return Gone
	}
	return StatusLocalProtection
}

// Scatter stores b at offset from of a scatter list, looking each key up
// again: those of a receive in the domain of c, those of a request with c nil. The list must be long
// enough: StatusLocalLength otherwise.
func Scatter(h Host, c *RecvContext, l []SGE, from uint64, b []byte, s *Scratch) Status {
	for i := range l {
		if len(b) == 0 {
			break
		}
		if from >= uint64(l[i].Length) {
			from -= uint64(l[i].Length)
			continue
		}
		k := int(min(uint64(len(b)), uint64(l[i].Length)-from))
		m, st := h.Local(c, l[i].LKey, l[i].Addr+from, k, LocalWrite)
		if st != StatusSuccess {
			return st
		}
		err := CopyIn(m, l[i].Addr+from, b[:k], s)
		m.Release()
		if err != nil {
			return failure(err)
		}
		b = b[k:]
		from = 0
	}
	if len(b) > 0 {
		return StatusLocalLength
	}
	return StatusSuccess
}
