//go:build linux

package uverbs

import (
	"github.com/softnic/softnic/device"
)

// createQP serves struct ib_uverbs_create_qp and, without the response at its beginning,
// struct ib_uverbs_ex_create_qp.
func createQP(c *conn, r *request, a *answer) error {
	at := 8
	if r.extended {
		at = 0
		if r.u8(at+47) != 0 || r.u32(at+48) != 0 { // reserved, comp_mask
			return device.EINVAL
		}
	}
	typ := device.QPType(r.u8(at + 45))
	if typ != device.RC && typ != device.UC && typ != device.UD {
		return device.EOPNOTSUPP
	}
	pd, err1 := get[*device.PD](&c.objects, r.u32(at+8))
	scq, err2 := get[*completionQueue](&c.objects, r.u32(at+12))
	rcq, err3 := get[*completionQueue](&c.objects, r.u32(at+16))
	if err1 != nil || err2 != nil || err3 != nil {
		return device.EINVAL
	}
	var srq *sharedReceives
	if r.u8(at+46) != 0 {
		var err error
		if srq, err = get[*sharedReceives](&c.objects, r.u32(at+20)); err != nil {
			return err
		}
	}
	var n [5]int // send and receive requests, send and receive entries, inline bytes
	for i, most := range [...]int{device.MaxQPWR, device.MaxQPWR, device.MaxSGE, device.MaxSGE, device.MaxInline} {
		v := r.u32(at + 24 + 4*i)
		if v > uint32(most) {
			return invalid("create_qp: %s %d: at most %d are possible", [...]string{"max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data"}[i], v, most)
		}
		n[i] = int(v)
	}
	if srq != nil {
		n[1], n[3] = 0, 0
	}
	// Entries and inline bytes share the end of a slot, so that there is room for
	// as much of the one as of the other.
	room := max(max(n[2], 1)*sgeLen, n[4])
	sge, recvSGE := room/sgeLen, max(n[3], 1)

	q := &queuePair{counted: counted{user: r.u64(at)}}
	var err error
	if q.sq, err = c.arena.get(ringSize(n[0], sendWQELen+room)); err != nil {
		return err
	}
	sends := &sendRing{
		bell:     &q.bell,
		consumer: newConsumer(newRing(q.sq.buf, n[0], sendWQELen+room)),
		maxSGE:   sge, maxInline: room, datagram: typ == device.UD, ah: c.objects.addressHandle,
	}
	in := device.QPInit{
		Type: typ, SendCQ: scq.CQ, RecvCQ: rcq.CQ, SigAll: r.u8(at+44) != 0, SendRing: sends, StateChanged: q.state,
		Cap: device.Cap{SendWR: min(sends.capacity(), device.MaxQPWR), SendSGE: sge, Inline: room},
	}
	recvWR := 0
	if srq != nil {
		in.SRQ, recvSGE = srq.SRQ, 0
	} else {
		if q.rq, err = c.arena.get(ringSize(n[1], recvWQELen+recvSGE*sgeLen)); err != nil {
			c.arena.put(q.sq)
			return err
		}
		recvs := newRecvRing(q.rq, n[1], recvSGE)
		recvWR = recvs.capacity()
		in.RecvRing, in.Cap.RecvWR, in.Cap.RecvSGE = recvs, min(recvWR, device.MaxQPWR), recvSGE
	}
	q.QP, err = pd.CreateQP(in)
	if err != nil {
		c.arena.put(q.sq)
		c.arena.put(q.rq)
		return err
	}
	c.objects.events.Store(q.QP, &q.counted)
	h := c.objects.add(q)
	q.bell.of(c.arena.states, h)
	a.made(h, destroyQP)
	for _, v := range [...]uint32{
		q.Num(), uint32(sends.capacity()), uint32(recvWR), uint32(sge), uint32(recvSGE), uint32(room), 0,
	} {
		a.core = le.AppendUint32(a.core, v)
	}
	if r.extended {
		a.core = le.AppendUint32(a.core, 0)  // comp_mask
		a.core = le.AppendUint32(a.core, 40) // response_length
	}
	a.driver = q.sq.info(q.rq.info(nil))
	return nil
}

// state tells the library whether a doorbell makes sense. It is called under the queue pair's lock.
func (q *queuePair) state(s device.State) {
	q.bell.open = s >= device.StateRTS
	q.bell.tell()
}

func destroyQP(c *conn, h uint32, a *answer) error {
	q, err := doomed[*queuePair](&c.objects, h)
	if err != nil {
		return err
	}
	if err := q.Destroy(); err != nil {
		return err
	}
	async, _ := c.reported(&q.counted, q.QP, nil)
	q.state(device.StateReset)
	c.objects.remove(h)
	c.arena.put(q.sq)
	c.arena.put(q.rq)
	a.core = le.AppendUint32(nil, async)
	return nil
}

// postSend is the doorbell as a command: for queue pairs that have no state byte.
func postSend(c *conn, r *request, a *answer) error {
	q, err := get[*queuePair](&c.objects, r.u32(8))
	if err != nil {
		return err
	}
	a.core = make([]byte, 4)
	return q.Doorbell()
}

// legacyMask are the attributes that the plain command may name.
const legacyMask = device.AttrDestQPN<<1 - 1

// modifyQP serves struct ib_uverbs_modify_qp, with which the extended form begins.
func modifyQP(c *conn, r *request, a *answer) error {
	h := r.u32(64)
	q, err := get[*queuePair](&c.objects, h)
	if err != nil {
		return err
	}
	mask := device.AttrMask(r.u32(68))
	if known := legacyMask | device.AttrRateLimit; mask&^known != 0 || !r.extended && mask&^legacyMask != 0 {
		return device.EOPNOTSUPP
	}
	at := device.QPAttr{
		QKey: r.u32(72), RQPSN: r.u32(76), SQPSN: r.u32(80), DestQPN: r.u32(84), Access: device.Access(r.u32(88)),
		PKeyIndex: int(r.u16(92)), State: device.State(r.u8(96)), CurState: device.State(r.u8(97)), PathMTU: mtuBytes(r.u8(98)),
		MaxRdAtomic: int(r.u8(101)), MaxDestRdAtomic: int(r.u8(102)), MinRNRTimer: int(r.u8(103)), Port: int(r.u8(104)),
		Timeout: int(r.u8(105)), RetryCnt: int(r.u8(106)), RNRRetry: int(r.u8(107)),
		SQDNotify: r.u8(100) != 0,
	}
	if mask&device.AttrAccess != 0 {
		at.Access &^= accessOptional
	}
	if mask&device.AttrAV != 0 {
		if at.AH, err = r.ahAttr(0, 16, 24, 25, 26, 30, 31); err != nil {
			return hinted{refusal{at.State.String() + " refused: " + err.Error()}}
		}
	}
	err = q.Modify(&at, mask)
	if err != nil && mask&device.AttrAV != 0 {
		return hinted{err} // addresses and path MTU are for the user to mend
	}
	if r.extended {
		a.core = le.AppendUint32(le.AppendUint32(nil, 0), 8)
	}
	return err
}

// queryQP answers struct ib_uverbs_query_qp_resp.
func queryQP(c *conn, r *request, a *answer) error {
	q, err := get[*queuePair](&c.objects, r.u32(8))
	if err != nil {
		return err
	}
	at, in := q.Query()
	b := make([]byte, 128)
	putAH(b, &at.AH)
	for i, v := range [...]uint32{
		uint32(in.Cap.SendWR), uint32(in.Cap.RecvWR), uint32(in.Cap.SendSGE), uint32(in.Cap.RecvSGE), uint32(in.Cap.Inline),
		at.QKey, at.RQPSN, at.SQPSN, at.DestQPN, uint32(at.Access),
	} {
		le.PutUint32(b[64+4*i:], v)
	}
	le.PutUint16(b[104:], uint16(at.PKeyIndex))
	b[108], b[109], b[110] = uint8(at.State), uint8(at.CurState), mtuCode(at.PathMTU)
	if at.SQDraining {
		b[112] = 1
	}
	b[113], b[114], b[115] = uint8(at.MaxRdAtomic), uint8(at.MaxDestRdAtomic), uint8(at.MinRNRTimer)
	b[116], b[117], b[118], b[119] = uint8(at.Port), uint8(at.Timeout), uint8(at.RetryCnt), uint8(at.RNRRetry)
	if in.SigAll {
		b[122] = 1
	}
	a.core = b
	return nil
}

// putAH writes struct ib_uverbs_qp_dest.
func putAH(b []byte, at *device.AHAttr) {
	if at.DGID.IsZero() {
		return
	}
	copy(b, at.DGID[:])
	le.PutUint32(b[16:], at.FlowLabel)
	b[24], b[25], b[26] = uint8(at.SGIDIndex), at.HopLimit, at.TrafficClass
	b[30], b[31] = 1, uint8(max(at.Port, 1))
}
