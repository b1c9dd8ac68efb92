//go:build linux

package uverbs

import (
	"net/netip"

	"github.com/softnic/softnic/device"
)

// handle is one of a kind, mostly.
func (k *walker) handle(kind rune) uint32 {
	var l, all []uint32
	for h, of := range k.live {
		if all = append(all, h); of == kind {
			l = append(l, h)
		}
	}
	switch {
	case len(l) > 0 && !k.one(20):
		return minimum(k, l)
	case len(all) > 0 && !k.one(4):
		return minimum(k, all)
	}
	return pick(k, 0, 1, k.r.Uint32N(100), k.r.Uint32(), ^uint32(0))
}

// minimum picks a handle so that the order of a map does not matter: the smallest not below a random one of them, by value.
func minimum(k *walker, l []uint32) uint32 {
	best, x := l[0], k.r.Uint32N(64)
	for _, h := range l {
		if d, e := h-x, best-x; d < e {
			best = h
		}
	}
	return best
}

func (k *walker) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(k.r.Uint32())
	}
	return b
}

// number is a small one, or any.
func (k *walker) number(most int) uint64 {
	if k.one(12) {
		return pick[uint64](k, 0, 1<<31, 1<<32-1, uint64(most), uint64(most)+1, uint64(k.r.Uint32()))
	}
	return uint64(k.r.IntN(20))
}

func (k *walker) gid() device.GID {
	g, _ := k.walk.d[k.r.IntN(2)].dev.QueryGID(1, pick(k, 1, 1, 1, 0, 5))
	if k.one(4) {
		g = device.GIDOf(netip.MustParseAddr(pick(k, "239.1.2.3", "ff0e::7", "10.9.9.9", "239.1.2.4")))
	}
	return g
}

// reg registers memory of the program, or what is none. It must be nobody else's: all programs are one process here.
func (k *walker) reg() []byte {
	if k.one(2) {
		return regCommand(k.handle('p'), addressOf(k.ram), walkRAM, addressOf(k.ram), allAccess|uint32(device.RemoteAtomic|device.MWBind))
	}
	start := addressOf(k.ram)
	off, n := uint64(k.r.IntN(walkRAM)), uint64(1+k.r.IntN(8192))
	if off+n > walkRAM {
		n = walkRAM - off
	}
	iova := pick(k, start+off, start+off, off&4095, 1<<40+off&4095, ^uint64(0)&^4095+off&4095, k.r.Uint64())
	if k.one(12) {
		start, off, n = pick[uint64](k, 0, 4096, ^uint64(0)-4095), 0, pick(k, n, 0, 1<<63)
		if start == 0 && n > 8192 {
			n = 0
		}
	}
	access := pick(k, allAccess, allAccess, allAccess|uint32(device.RemoteAtomic|device.MWBind), uint32(device.RemoteRead), k.r.Uint32()>>k.r.IntN(32))
	return regCommand(k.handle('p'), start+off, n, iova, access)
}

// command is one that may succeed.
func (k *walker) command() []byte {
	none := uint64(0xFFFFFFFF)
	channel := none
	if len(k.channels) > 0 && k.one(2) || k.one(20) { // one has to come along
		channel = uint64(k.r.IntN(100))
	}
	switch k.r.IntN(34) {
	case 0, 1:
		return legacy(cmdAllocPD, newStruct("ib_uverbs_alloc_pd"), 4)
	case 2, 3, 4:
		return k.reg()
	case 5:
		return legacy(cmdAllocMW, newStruct("ib_uverbs_alloc_mw").put("pd_handle", uint64(k.handle('p'))).put("mw_type", pick(k, 1, 1, 2, 2, k.number(3))), 8)
	case 6:
		return legacy(cmdCreateCompChannel, newStruct("ib_uverbs_create_comp_channel"), 4)
	case 7, 8, 9:
		return legacy(cmdCreateCQ, newStruct("ib_uverbs_create_cq").put("user_handle", k.number(9)).put("cqe", k.number(device.MaxCQE)).put("comp_channel", channel).
			put("comp_vector", uint64(pick(k, 0, 0, 0, 1, 1<<31))), 8+16)
	case 10:
		return ex(cmdCreateCQ, newStruct("ib_uverbs_ex_create_cq").put("user_handle", k.number(9)).put("cqe", k.number(device.MaxCQE)).put("comp_channel", channel).
			put("flags", uint64(pick(k, 0, 0, 1))).b, 16, 16)
	case 11:
		return (&cq_{handle: k.handle('c')}).resizeCommand(int(k.number(device.MaxCQE)))
	case 12:
		return legacy(cmdReqNotifyCQ, newStruct("ib_uverbs_req_notify_cq").put("cq_handle", uint64(k.handle('c'))).put("solicited_only", k.number(1)), 0)
	case 13, 14, 15, 16:
		s := qpCommand(k.handle('p'), k.number(9), qpInit{typ: pick(k, device.RC, device.RC, device.RC, device.UC, device.UD, device.UD, device.QPType(k.r.IntN(12))), scq: &cq_{handle: k.handle('c')},
			rcq: &cq_{handle: k.handle('c')}, send: int(k.number(device.MaxQPWR)), recv: int(k.number(device.MaxQPWR)), ssge: int(k.number(device.MaxSGE)),
			rsge: int(k.number(device.MaxSGE)), inline: int(k.number(device.MaxInline)), sigAll: k.one(2)})
		if k.one(4) {
			s.put("is_srq", 1).put("srq_handle", uint64(k.handle('s')))
		}
		if k.one(4) {
			e := newStruct("ib_uverbs_ex_create_qp")
			copy(e.b, s.b[8:])
			return ex(cmdCreateQP, e.b, 40, 32)
		}
		return legacy(cmdCreateQP, s, qpRoom)
	case 17, 18:
		q := &qp_{handle: k.handle('q')}
		mask := pick(k, device.AttrState, device.AttrState|device.AttrQKey, device.AttrMask(k.r.Uint32()))
		return legacy(cmdModifyQP, q.modifyStruct(device.State(k.r.IntN(8)), mask).put("port_num", 1).put("sq_psn", uint64(k.r.Uint32())).put("en_sqd_async_notify", 1), 0)
	case 19:
		return legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", uint64(k.handle('q'))), 128)
	case 20:
		return legacy(cmdPostSend, newStruct("ib_uverbs_post_send").put("qp_handle", uint64(k.handle('q'))), 4)
	case 21:
		return mcastCommand(pick[uint32](k, cmdAttachMcast, cmdAttachMcast, cmdDetachMcast), k.gid(), k.handle('q'), uint16(k.r.IntN(2)))
	case 22, 23:
		return legacy(cmdCreateAH, ahCommand(k.handle('p'), k.gid()).put("attr.grh.sgid_index", uint64(pick(k, 1, 1, 1, 0, 200))), 12)
	case 24:
		return legacy(cmdCreateSRQ, srqCommand(k.handle('p'), k.number(9), int(k.number(device.MaxSRQWR)), int(k.number(device.MaxSRQSGE))).put("srq_limit", k.number(9)), 16+20)
	case 25:
		mi := addressOf(k.ram) + uint64(k.r.IntN(walkRAM-64))
		return legacyBytes(cmdModifySRQ, le.AppendUint64(newStruct("ib_uverbs_modify_srq").put("srq_handle", uint64(k.handle('s'))).put("attr_mask", pick(k, 1, 2, 3, k.number(3))).
			put("max_wr", k.number(device.MaxSRQWR)).put("srq_limit", k.number(20)).b, pick(k, mi, mi, 16)), 0)
	case 26:
		return legacy(cmdQuerySRQ, newStruct("ib_uverbs_query_srq").put("srq_handle", uint64(k.handle('s'))), 16)
	case 27:
		return legacy(cmdQueryPort, newStruct("ib_uverbs_query_port").put("port_num", pick(k, 1, 1, k.number(1))), 40)
	case 28:
		return ex(cmdQueryDevice, make([]byte, 8), queryDeviceLen+8+k.r.IntN(3)*8, 0)
	case 29:
		return legacy(cmdGetContext, newStruct("ib_uverbs_get_context"), 8)
	}
	return k.destroy()
}

func (k *walker) destroy() []byte {
	switch k.r.IntN(7) {
	case 0:
		return handleCommand(cmdDeallocPD, k.handle('p'))
	case 1:
		return handleCommand(cmdDestroyAH, k.handle('a'))
	case 2:
		return handleCommand(cmdDeregMR, k.handle('m'))
	case 3:
		return handleCommand(cmdDeallocMW, k.handle('w'))
	case 4:
		return (&cq_{handle: k.handle('c')}).destroyCommand()
	case 5:
		return (&qp_{handle: k.handle('q')}).destroyCommand()
	}
	return (&srq_{handle: k.handle('s')}).destroyCommand()
}

// broken makes a command of a wrong one. Where a registration begins and how long it is stays: all programs are one process.
func (k *walker) broken(cmd []byte) []byte {
	for range 1 + k.r.IntN(3) {
		switch k.r.IntN(4) {
		case 0:
			cmd = cmd[:k.r.IntN(len(cmd)+1)]
		case 1:
			cmd = append(cmd, k.bytes(k.r.IntN(16))...)
		case 2:
			cmd = k.bytes(k.r.IntN(200))
		default:
			if len(cmd) > 0 {
				i := k.r.IntN(len(cmd))
				cmd[i] ^= 1 << k.r.IntN(8)
			}
		}
		if len(cmd) == 0 {
			return cmd
		}
	}
	if len(cmd) >= 4 && le.Uint32(cmd)&cmdMask == cmdRegMR {
		cmd[0] = cmdQueryPort
	}
	return cmd
}

// connect takes a queue pair to RTS, mostly against another of the program and that one too.
func (k *walker) connect() {
	if len(k.sends) == 0 {
		return
	}
	q, peer := k.sends[k.r.IntN(len(k.sends))], k.peer(k.r)
	if o := k.sends[k.r.IntN(len(k.sends))]; k.types[o] == k.types[q] && !k.one(4) {
		peer = o
		k.ready(o, q)
	}
	k.ready(q, peer)
}

func (k *walker) ready(q, peer *qp_) {
	l := []structure{q.modifyStruct(device.StateReset, device.AttrState)}
	if k.types[q] == device.UD {
		l = append(l, q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey).put("port_num", 1).put("qkey", walkKey),
			q.modifyStruct(device.StateRTR, device.AttrState), q.modifyStruct(device.StateRTS, device.AttrState|device.AttrSQPSN).put("sq_psn", 7))
	} else if peer != nil {
		rtr, rts := q.rtrStruct(peer).put("rq_psn", 5), q.rtsStruct().put("sq_psn", 5).put("timeout", 8).put("retry_cnt", 1).put("rnr_retry", 1)
		if k.types[q] == device.UC {
			rtr.put("attr_mask", uint64(device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN))
			rts.put("attr_mask", uint64(device.AttrState|device.AttrSQPSN))
		}
		l = append(l, q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess).put("port_num", 1).
			put("qp_access_flags", uint64(allAccess|uint32(device.RemoteAtomic))), rtr, rts)
	}
	for _, s := range l {
		if !k.over {
			k.send(legacy(cmdModifyQP, s, 0))
		}
	}
}

// walkKey is the Q_Key of datagrams.
const walkKey = 7

func (k *walker) key(l []uint32) uint32 {
	if len(l) == 0 || k.one(20) {
		return k.r.Uint32()
	}
	return l[k.r.IntN(len(l))]
}

func (k *walker) sge() device.SGE {
	if len(k.regs) == 0 || k.one(8) {
		return device.SGE{Addr: addressOf(k.ram) + uint64(k.r.IntN(walkRAM)), Length: uint32(pick(k, 0, 1, 8, 100, 5000, 1<<31)), LKey: k.r.Uint32()}
	}
	g := k.regs[k.r.IntN(len(k.regs))]
	n := min(g.n, pick[uint64](k, 0, 1, 8, 8, 8, 100, 3000))
	return device.SGE{Addr: g.addr + (g.n-n)&^7, Length: uint32(n), LKey: g.lkey}
}

// work posts requests and receives and rings.
func (k *walker) work() {
	for _, q := range k.recvs {
		if k.one(2) {
			k.fill(q, at("rxe_recv_wqe.dma.sge").off, func(b []byte) {
				view("rxe_recv_wqe", b).put("wr_id", k.r.Uint64())
				if len(b) >= at("rxe_recv_wqe.dma.sge").off+16 {
					view("rxe_recv_wqe", b).put("dma.num_sge", 1)
					putSGE(b[at("rxe_recv_wqe.dma.sge").off:], sges(k.sge()))
				}
			})
		}
	}
	if len(k.sends) == 0 {
		return
	}
	q := k.sends[k.r.IntN(len(k.sends))]
	remote := k.peer(k.r)
	for range 1 + k.r.IntN(4) {
		k.fill(q.sq, at("rxe_send_wqe.dma.sge").off+16, func(b []byte) {
			r := request_{id: k.r.Uint64(), op: device.WROp(k.r.IntN(17)), flags: device.SendFlags(k.r.IntN(8)), imm: k.r.Uint32(), sge: sges(k.sge()),
				remote: addressOf(k.ram) + uint64(k.r.IntN(walkRAM)), rkey: k.key(k.rkeys)}
			if !k.one(4) {
				r.op = pick(k, device.OpSend, device.OpSendImm, device.OpWrite, device.OpWrite, device.OpWriteImm, device.OpRead, device.OpFetchAdd)
			}
			if len(k.regs) > 0 && !k.one(8) {
				g := k.regs[k.r.IntN(len(k.regs))]
				r.remote, r.rkey = g.addr&^7, g.rkey
			}
			if k.one(4) {
				g := k.goal(k.r)
				r.remote, r.rkey = g.addr, g.rkey
			}
			if k.types[q] == device.UD && remote != nil {
				r.op, r.ud = pick(k, device.OpSend, device.OpSend, device.OpSendImm), &[3]uint32{remote.num, walkKey, k.key(k.ahs)}
			}
			r.fill(b)
		})
	}
	k.unanswered(kindDoorbell, q.handle, make([]byte, 32))
}

// fill writes the next slot of a ring, full or not. What the program knows of the ring it has read from a header that may have been
// nonsense by then: a slot too short for what is to be written is left alone.
func (k *walker) fill(q queue, least int, f func(b []byte)) {
	i := *q.word("producer_index") & q.mask()
	if n := 1 << q.shift; n >= least && at("rxe_queue_buf.data").off+(int(i)+1)*n <= len(q.b) {
		f(q.slot(i))
	}
	*q.word("producer_index") = (i + 1) & q.mask()
}

// scribble writes anything anywhere where the program can write.
func (k *walker) scribble() {
	var l []queue
	l = append(append(l, k.cqs...), k.recvs...)
	for _, q := range k.sends {
		l = append(l, q.sq)
	}
	if len(l) > 0 {
		scribble(k.r, l[k.r.IntN(len(l))])
	}
	if k.one(4) {
		copy(k.p.page[k.r.IntN(len(k.p.page)-8):], k.bytes(8))
	}
	if k.one(2) { // what its queues are armed for
		copy(k.p.page[armOff+4*k.r.IntN(64):], k.bytes(4))
	}
}
