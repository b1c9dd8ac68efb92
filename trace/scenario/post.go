package scenario

import (
	"fmt"
	"slices"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

var errnos = map[string]device.Errno{
	"EPERM": device.EPERM, "EIO": device.EIO, "EAGAIN": device.EAGAIN, "ENOMEM": device.ENOMEM, "EFAULT": device.EFAULT,
	"EBUSY": device.EBUSY, "EINVAL": device.EINVAL, "ENOSPC": device.ENOSPC, "EOPNOTSUPP": device.EOPNOTSUPP,
}

// takeErrno takes err= out of args.
func takeErrno(args []arg) (device.Errno, []arg, error) {
	i := slices.IndexFunc(args, func(a arg) bool { return a.name == "err" })
	if i < 0 {
		return 0, args, nil
	}
	e, ok := errnos[args[i].value]
	if !ok {
		return 0, nil, fmt.Errorf("err=%s is no error of a verb", args[i].value)
	}
	return e, slices.Delete(slices.Clone(args), i, i+1), nil
}

// takeCall takes qp= and err= out of the arguments of a call.
func (p *parser) takeCall(args []arg) (q *qp, e device.Errno, rest []arg, err error) {
	if q, args, err = p.takeQP(args); err == nil {
		e, args, err = takeErrno(args)
	}
	return q, e, args, err
}

var sendOps = map[string]device.WROp{
	"SEND": device.OpSend, "SEND_IMM": device.OpSendImm, "SEND_INV": device.OpSendInv, "WRITE": device.OpWrite, "WRITE_IMM": device.OpWriteImm,
	"READ": device.OpRead, "COMPARE_SWAP": device.OpCompareSwap, "FETCH_ADD": device.OpFetchAdd, "ATOMIC_WRITE": device.OpAtomicWrite, "FLUSH": device.OpFlush,
	"BIND_MW": device.OpBindMW, "LOCAL_INV": device.OpLocalInv,
}

// postSend reads post_send ID OP [NAME=VALUE…].
func (p *parser) postSend(l []string) (action, error) {
	if len(l) < 2 {
		return nil, fmt.Errorf("post_send ID OPERATION")
	}
	id, err := number(l[0], 64)
	if err != nil {
		return nil, err
	}
	args, err := splitArgs(l[2:])
	if err != nil {
		return nil, err
	}
	d := doPost{send: true, wr: device.SendWR{ID: id, Flags: device.Signaled, RemoteQKey: 1 << 31}}
	if d.qp, d.err, args, err = p.takeCall(args); err != nil {
		return nil, err
	}
	d.wr.RemoteQPN = d.qp.dest
	var ok bool
	if d.wr.Op, ok = sendOps[l[1]]; !ok {
		return nil, fmt.Errorf("no send operation %q: SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, COMPARE_SWAP, FETCH_ADD, ATOMIC_WRITE, FLUSH, BIND_MW, LOCAL_INV", l[1])
	}
	for _, a := range args {
		switch {
		case a.name == "mw":
			if d.mw = p.mw(a.value); d.mw == nil {
				return nil, fmt.Errorf("mw: there is no window %q: alloc_mw", a.value)
			}
			continue
		case d.wr.Op == device.OpBindMW:
			err = p.bindArg(&d.wr.Bind, a)
		default:
			err = p.sendArg(&d.wr, a)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	if (d.wr.Op == device.OpBindMW) != (d.mw != nil) {
		return nil, fmt.Errorf("BIND_MW has mw=, and nothing else does")
	}
	return d, nil
}

func (p *parser) bindArg(b *transport.BindWR, a arg) (err error) {
	var v uint64
	switch a.name {
	case "newkey":
		v, err = number(a.value, 32)
		b.NewKey = uint32(v)
	case "sge":
		var m *mr
		m, b.Addr, b.Length, err = p.piece(a.value)
		if err == nil {
			b.MRKey = m.key
		}
	case "access":
		b.Access, err = parseAccess(a.value)
		b.Access &^= device.LocalWrite
	default:
		return fmt.Errorf("BIND_MW has mw=, newkey=, sge= and access=")
	}
	return err
}

func (p *parser) sendArg(wr *device.SendWR, a arg) (err error) {
	var v uint64
	switch a.name {
	case "sge":
		var e device.SGE
		e, err = p.sge(a.value)
		wr.SGE = append(wr.SGE, e)
	case "va":
		wr.RemoteAddr, err = p.address(a.value)
	case "rkey":
		v, err = p.key(a.value)
		wr.RKey = uint32(v)
	case "imm":
		v, err = number(a.value, 32)
		wr.Imm = uint32(v)
	case "inv":
		v, err = p.key(a.value)
		wr.Imm = uint32(v)
	case "add", "compare":
		wr.CompareAdd, err = number(a.value, 64)
	case "swap":
		wr.Swap, err = number(a.value, 64)
	case "len":
		v, err = number(a.value, 32)
		wr.FlushLen = uint32(v)
	case "plt":
		v, err = number(a.value, 2)
		wr.FlushType = transport.FlushType(v)
	case "sel":
		v, err = number(a.value, 1)
		wr.FlushLevel = transport.FlushLevel(v)
	case "dest":
		v, err = number(a.value, 24)
		wr.RemoteQPN = uint32(v)
	case "qkey":
		v, err = number(a.value, 32)
		wr.RemoteQKey = uint32(v)
	case "srqn":
		v, err = p.srqn(a.value)
		wr.SRQN = uint32(v)
	case "unsignaled":
		wr.Flags &^= device.Signaled
	case "fence":
		wr.Flags |= device.Fence
	case "solicited":
		wr.Flags |= device.Solicited
	default:
		return fmt.Errorf("no such thing of a send request")
	}
	return err
}

func (p *parser) sge(w string) (device.SGE, error) {
	m, va, n, err := p.piece(w)
	if err != nil {
		return device.SGE{}, err
	}
	if n>>32 != 0 {
		return device.SGE{}, fmt.Errorf("%d bytes are too many", n)
	}
	return device.SGE{Addr: va, Length: uint32(n), LKey: m.key}, nil
}

// postRecv reads post_recv ID [sge=…] [qp=NAME|srq=NAME] [err=ERRNO].
func (p *parser) postRecv(l []string) (action, error) {
	if len(l) == 0 {
		return nil, fmt.Errorf("post_recv ID")
	}
	id, err := number(l[0], 64)
	if err != nil {
		return nil, err
	}
	args, err := splitArgs(l[1:])
	if err != nil {
		return nil, err
	}
	d := doPost{recv: device.RecvWR{ID: id}}
	if i := slices.IndexFunc(args, func(a arg) bool { return a.name == "srq" }); i >= 0 {
		if d.srq = p.srq(args[i].value); d.srq == nil {
			return nil, fmt.Errorf("there is no shared receive queue %s: create_srq", args[i].value)
		}
		d.err, args, err = takeErrno(slices.Delete(slices.Clone(args), i, i+1))
	} else {
		d.qp, d.err, args, err = p.takeCall(args)
	}
	if err != nil {
		return nil, err
	}
	for _, a := range args {
		if a.name != "sge" {
			return nil, fmt.Errorf("a receive has sge=, not %s", a.name)
		}
		e, err := p.sge(a.value)
		if err != nil {
			return nil, err
		}
		d.recv.SGE = append(d.recv.SGE, e)
	}
	return d, nil
}
