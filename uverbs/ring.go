//go:build linux

package uverbs

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// A ring is a queue in memory that the program shares (kernel: rxe_queue.h):
//
//	0    u32 log2 of the element size     daemon, once
//	4    u32 index mask, slots - 1        daemon, once
//	128  u32 producer index               program; of a CQ the daemon
//	256  u32 consumer index               daemon; of a CQ the program
//	384  slots
//
// An index stays within the mask. The ring is empty when the two are equal, and full
// when the producer stands right behind the consumer: one slot is never used.
//
// The program can write all of it at any time. So the daemon keeps its own copy
// of mask, element size and the index that it owns, masks the other one, and
// copies a slot before it looks at it.
type ring struct {
	buf   []byte
	shift uint
	mask  uint32
}

const (
	ringShift    = 0
	ringMask     = 4
	ringProducer = 128
	ringConsumer = 256
	ringData     = 384
)

// ringSize returns how many bytes a ring for n elements needs.
func ringSize(n, elem int) uint64 {
	slots, shift := ringShape(n, elem)
	return ringData + slots<<shift
}

func ringShape(n, elem int) (slots uint64, shift uint) {
	return 1 << bits.Len(uint(n)), uint(bits.Len(uint(elem - 1)))
}

// newRing lays a ring for at least n elements of elem bytes out in buf, which
// has ringSize bytes of zero.
func newRing(buf []byte, n, elem int) ring {
	slots, shift := ringShape(n, elem)
	r := ring{buf: buf, shift: shift, mask: uint32(slots - 1)}
	binary.LittleEndian.PutUint32(buf[ringShift:], uint32(shift))
	binary.LittleEndian.PutUint32(buf[ringMask:], r.mask)
	return r
}

// capacity returns how many elements the ring holds.
func (r *ring) capacity() int { return int(r.mask) }

func (r *ring) word(off int) *uint32 {
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(r.buf[off : off+4])))
}

func (r *ring) load(off int) uint32     { return atomic.LoadUint32(r.word(off)) & r.mask }
func (r *ring) store(off int, v uint32) { atomic.StoreUint32(r.word(off), v&r.mask) }

func (r *ring) slot(i uint32) []byte {
	o := ringData + uint64(i&r.mask)<<r.shift
	return r.buf[o : o+1<<r.shift]
}

// takeOver copies the elements of another ring from one index to another to the beginning of this one, which is empty, and returns their
// number; ok is false when there are more than limit.
func (r *ring) takeOver(o *ring, from, to uint32, limit int) (n uint32, ok bool) {
	n = (to - from) & o.mask
	if int(n) > limit || n > r.mask {
		return 0, false
	}
	for i := range n {
		copy(r.slot(i), o.slot(from+i))
	}
	r.store(ringProducer, n)
	return n, true
}

// consumer is the daemon's end of a queue that the program fills.
type consumer struct {
	ring
	fetched uint32 // next slot to be taken
	retired uint32 // what the consumer index says
	private []byte // copy of the slot in hand
}

func newConsumer(r ring) consumer { return consumer{ring: r, private: make([]byte, 1<<r.shift)} }

// pending reports whether there is a slot to be taken.
func (c *consumer) pending() bool {
	return c.fetched != c.load(ringProducer) && (c.fetched+1)&c.mask != c.retired
}

// next copies the next slot; nil when there is none.
func (c *consumer) next() []byte {
	if !c.pending() {
		return nil
	}
	copy(c.private, c.slot(c.fetched))
	c.fetched = (c.fetched + 1) & c.mask
	return c.private
}

// Retire implements transport.SendQueue and transport.RecvQueue.
func (c *consumer) Retire(n int) {
	c.retired = (c.retired + uint32(n)) & c.mask
	c.store(ringConsumer, c.retired)
}

// Clear implements device.SendRing and device.RecvRing.
func (c *consumer) Clear() {
	c.fetched = c.load(ringProducer)
	c.retired = c.fetched
	c.store(ringConsumer, c.retired)
}

// A send work request as librxe writes it (kernel: rdma_user_rxe.h, struct
// rxe_send_wqe). What the kernel keeps in the slot while it works (status, state, iova,
// PSNs, resid, cur_sge) is not looked at: progress is private here.
const (
	wqeID                     = 0
	wqeOpcode                 = 12
	wqeFlags                  = 16
	wqeImm                    = 20 // immediate data in network order, or an R_Key
	wqeRemote                 = 24 // RDMA and atomics: remote address
	wqeRKey                   = 32 // RDMA
	wqeCompare                = 32 // atomics
	wqeSwap                   = 40
	wqeAtomKey                = 48
	wqeMWAddr                 = 24 // binding a window
	wqeMWLength               = 32
	wqeMWMRKey                = 40
	wqeMWKey                  = 44
	wqeMWNewKey               = 48
	wqeMWAccess               = 52
	wqeFlushKey               = 36 // FLUSH; its length is dma.length: the one at 32 neither librxe nor the kernel uses
	wqeFlushTyp               = 40
	wqeFlushLvl               = 41
	wqeUDQPN                  = 24
	wqeUDQKey                 = 28
	wqeUDAHNum                = 36
	wqeLength                 = 184 // dma.length
	wqeNumSGE                 = 196 // dma.num_sge
	sendWQELen                = 208 // then SGEs, or inline bytes
	sgeLen                    = 16
	recvNumSGE                = 28
	recvWQELen                = 40     // then SGEs
	cqeLen                    = 64     // struct ib_uverbs_wc has 48 bytes
	maxWROpcode               = 15     // IBV_WR_ATOMIC_WRITE
	firstUnknown, lastUnknown = 10, 13 // LSO, READ with invalidate, masked atomics: librxe has no form for them
)

// sendRing is a send queue in shared memory.
type sendRing struct {
	consumer
	bell              *bell
	maxSGE, maxInline int
	datagram          bool
	ah                func(num uint32) *device.AH // address handles of the context
}

var _ device.QuietRing = (*sendRing)(nil)

// Quiet implements device.QuietRing.
func (r *sendRing) Quiet(on bool) {
	r.bell.quiet = on
	r.bell.tell()
}

// Pending implements device.QuietRing.
func (r *sendRing) Pending() bool { return r.pending() }

// Fetch implements transport.SendQueue.
func (r *sendRing) Fetch(wr *device.SendWR) (device.Status, bool) {
	b := r.next()
	if b == nil {
		return 0, false
	}
	return r.decode(b, wr), true
}

func (r *sendRing) decode(b []byte, wr *device.SendWR) device.Status {
	le := binary.LittleEndian
	op := le.Uint32(b[wqeOpcode:])
	*wr = device.SendWR{
		ID: le.Uint64(b[wqeID:]), Op: device.WROp(min(op, 255)), Flags: device.SendFlags(le.Uint32(b[wqeFlags:])),
		SGE: wr.SGE[:0], InlineData: wr.InlineData[:0],
	}
	if op > maxWROpcode || op >= firstUnknown && op <= lastUnknown {
		return device.StatusLocalQPOp
	}
	switch wr.Op {
	case transport.OpSendInv, transport.OpLocalInv:
		wr.Imm = le.Uint32(b[wqeImm:])
	default:
		wr.Imm = binary.BigEndian.Uint32(b[wqeImm:])
	}
	switch {
	case r.datagram:
		wr.RemoteQPN, wr.RemoteQKey = le.Uint32(b[wqeUDQPN:])&0xFFFFFF, le.Uint32(b[wqeUDQKey:])
		if a := r.ah(le.Uint32(b[wqeUDAHNum:])); a != nil {
			wr.AH = a
		}
	case wr.Op == transport.OpBindMW:
		wr.Bind = transport.BindWR{
			Window: le.Uint32(b[wqeMWKey:]), NewKey: le.Uint32(b[wqeMWNewKey:]), MRKey: le.Uint32(b[wqeMWMRKey:]),
			Addr: le.Uint64(b[wqeMWAddr:]), Length: le.Uint64(b[wqeMWLength:]), Access: device.Access(le.Uint32(b[wqeMWAccess:])),
		}
		return device.StatusSuccess
	case wr.Op == transport.OpFlush:
		wr.RemoteAddr, wr.RKey, wr.FlushLen = le.Uint64(b[wqeRemote:]), le.Uint32(b[wqeFlushKey:]), le.Uint32(b[wqeLength:])
		wr.FlushType, wr.FlushLevel = transport.FlushType(b[wqeFlushTyp]), transport.FlushLevel(b[wqeFlushLvl])
		return device.StatusSuccess
	case wr.Op == transport.OpAtomicWrite:
		// Its 8 bytes stand where entries would.
		wr.RemoteAddr, wr.RKey = le.Uint64(b[wqeRemote:]), le.Uint32(b[wqeRKey:])
		wr.Flags |= device.Inline
		wr.InlineData = append(wr.InlineData, b[sendWQELen:sendWQELen+8]...)
		return device.StatusSuccess
	case wr.Op == transport.OpCompareSwap, wr.Op == transport.OpFetchAdd:
		wr.RemoteAddr, wr.RKey = le.Uint64(b[wqeRemote:]), le.Uint32(b[wqeAtomKey:])
		wr.CompareAdd, wr.Swap = le.Uint64(b[wqeCompare:]), le.Uint64(b[wqeSwap:])
	default:
		wr.RemoteAddr, wr.RKey = le.Uint64(b[wqeRemote:]), le.Uint32(b[wqeRKey:])
	}
	length, n := le.Uint32(b[wqeLength:]), le.Uint32(b[wqeNumSGE:])
	if n == 0 && length > 0 && transport.Segmented(wr.Op) { // ibv_wr_set_inline_data(3) does not ask for the flag
		wr.Flags |= device.Inline
	}
	if wr.Flags&device.Inline != 0 {
		if uint64(length) > uint64(r.maxInline) {
			return device.StatusLocalQPOp
		}
		wr.InlineData = append(wr.InlineData, b[sendWQELen:sendWQELen+int(length)]...)
		return device.StatusSuccess
	}
	if uint64(n) > uint64(r.maxSGE) {
		return device.StatusLocalQPOp
	}
	wr.SGE = appendSGE(wr.SGE, b[sendWQELen:], int(n))
	return trim(wr, uint64(length))
}

// trim makes the length that the program wrote beside the list the length of the
// message, as the kernel does: libraries have been seen to sum wrongly.
func trim(wr *device.SendWR, length uint64) device.Status {
	for i := range wr.SGE {
		s := &wr.SGE[i]
		s.Length = uint32(min(uint64(s.Length), length))
		length -= uint64(s.Length)
	}
	if length > 0 {
		return device.StatusLocalQPOp
	}
	return device.StatusSuccess
}

func appendSGE(l []device.SGE, b []byte, n int) []device.SGE {
	le := binary.LittleEndian
	for i := range n {
		e := b[i*sgeLen:]
		l = append(l, device.SGE{Addr: le.Uint64(e), Length: le.Uint32(e[8:]), LKey: le.Uint32(e[12:])})
	}
	return l
}

// recvRing is a receive queue in shared memory.
type recvRing struct {
	consumer
	maxSGE    int
	malformed bool // what was fetched last
}

var _ device.SharedRing = (*recvRing)(nil)

func newRecvRing(s span, n, maxSGE int) *recvRing {
	return &recvRing{consumer: newConsumer(newRing(s.buf, n, recvWQELen+maxSGE*sgeLen)), maxSGE: maxSGE}
}

// Fetch implements transport.RecvQueue.
func (r *recvRing) Fetch(wr *device.RecvWR) bool {
	b := r.next()
	if b == nil {
		return false
	}
	r.malformed = !decodeRecv(b, wr, r.maxSGE)
	return true
}

// Malformed implements device.SharedRing.
func (r *recvRing) Malformed() bool { return r.malformed }

// Len implements device.SharedRing.
func (r *recvRing) Len() int { return int((r.load(ringProducer) - r.fetched) & r.mask) }

// decodeRecv reads a receive (struct rxe_recv_wqe). One that has more entries than a
// slot holds gets an entry that no key matches, so that it fails when it is used; the result is false.
func decodeRecv(b []byte, wr *device.RecvWR, maxSGE int) bool {
	le := binary.LittleEndian
	wr.ID, wr.SGE = le.Uint64(b[wqeID:]), wr.SGE[:0]
	n := le.Uint32(b[recvNumSGE:])
	if uint64(n) > uint64(maxSGE) {
		wr.SGE = append(wr.SGE, device.SGE{Length: ^uint32(0)})
		return false
	}
	wr.SGE = appendSGE(wr.SGE, b[recvWQELen:], int(n))
	return true
}

// cqRing is a completion queue in shared memory.
type cqRing struct {
	ring
	produced uint32
	arm      *uint32 // the program's word, see protocol.go; nil: there is none for the handle
}

var _ device.CompletionRing = (*cqRing)(nil)

// Push implements device.CompletionRing.
func (r *cqRing) Push(wc *device.WC) bool {
	next := (r.produced + 1) & r.mask
	if next == r.load(ringConsumer) {
		return false
	}
	encodeWC(r.slot(r.produced), wc)
	r.produced = next
	r.store(ringProducer, next)
	return true
}

// Armed implements device.CompletionRing. Push and this are a store and a load that others see in that order, as the library's arming and the
// program's look at the queue are: one of the two sees the other.
func (r *cqRing) Armed() device.Armed {
	if r.arm == nil {
		return device.ArmedNone
	}
	return device.Armed(min(atomic.LoadUint32(r.arm), uint32(device.ArmedAny)))
}

// Disarm implements device.CompletionRing.
func (r *cqRing) Disarm() {
	if r.arm != nil {
		atomic.StoreUint32(r.arm, armNone)
	}
}

// encodeWC writes a completion as programs read it (struct ib_uverbs_wc, which is
// struct ibv_wc).
func encodeWC(b []byte, wc *device.WC) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], wc.ID)
	le.PutUint32(b[8:], uint32(wc.Status))
	le.PutUint32(b[12:], uint32(wc.Op))
	le.PutUint32(b[16:], 0) // vendor_err
	le.PutUint32(b[20:], wc.ByteLen)
	if wc.Flags&transport.WCWithInv != 0 {
		le.PutUint32(b[24:], wc.Imm)
	} else {
		binary.BigEndian.PutUint32(b[24:], wc.Imm)
	}
	le.PutUint32(b[28:], wc.QPN)
	le.PutUint32(b[32:], wc.SrcQP)
	le.PutUint32(b[36:], uint32(wc.Flags))
	le.PutUint16(b[40:], wc.PKeyIndex)
	le.PutUint16(b[42:], 0) // slid
	b[44], b[45] = wc.SL, 0 // dlid_path_bits
	b[46], b[47] = 1, 0     // port_num
}
