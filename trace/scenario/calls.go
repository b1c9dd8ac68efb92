package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/wire/bth"
)

// nic reads nic [addr=A] [peer=A] [profile=NAME] [mtu=N].
func (p *parser) nic(l []string) (action, error) {
	if len(p.qps)+len(p.mrs) > 0 {
		return nil, fmt.Errorf("nic is the first statement")
	}
	args, err := splitArgs(l)
	if err != nil {
		return nil, err
	}
	n := &p.s.nic
	for _, a := range args {
		switch a.name {
		case "addr":
			n.addr, err = netip.ParseAddr(a.value)
		case "peer":
			n.peer, err = netip.ParseAddr(a.value)
		case "profile":
			n.profile = a.value
			_, err = device.ProfileByName(a.value)
		case "mtu":
			var v uint64
			v, err = number(a.value, 16)
			n.mtu = int(v)
		default:
			err = fmt.Errorf("nic has addr=, peer=, profile= and mtu=, not %s", a.name)
		}
		if err != nil {
			return nil, err
		}
	}
	n.addr, n.peer = n.addr.Unmap().WithZone(""), n.peer.Unmap().WithZone("")
	if n.addr.Is4() != n.peer.Is4() || n.addr == n.peer {
		return nil, fmt.Errorf("addr and peer are two addresses of one family")
	}
	return nothing{}, nil
}

// regMR reads reg_mr NAME [key=K] [va=A] [size=N] [access=…] [data=…].
func (p *parser) regMR(l []string) (action, error) {
	name, args, err := nameAndArgs(l)
	if err != nil {
		return nil, err
	}
	if p.mr(name) != nil {
		return nil, fmt.Errorf("there is a region %s already", name)
	}
	i := uint64(len(p.mrs))
	m := &mr{name: name, key: uint32(0x1000 + i), va: 0x100000 * (i + 1), size: 4096, access: accesses["all"]}
	for _, a := range args {
		var v uint64
		switch a.name {
		case "key":
			v, err = number(a.value, 32)
			m.key = uint32(v)
		case "va":
			m.va, err = number(a.value, 64)
		case "size":
			m.size, err = number(a.value, 64)
		case "access":
			m.access, err = parseAccess(a.value)
		case "data":
			m.data, err = parseData(a.value)
		default:
			err = fmt.Errorf("reg_mr has key=, va=, size=, access= and data=, not %s", a.name)
		}
		if err != nil {
			return nil, err
		}
	}
	if uint64(len(m.data)) > m.size {
		return nil, fmt.Errorf("%d bytes of data in a region of %d", len(m.data), m.size)
	}
	p.mrs = append(p.mrs, m)
	return doRegMR{m}, nil
}

func nameAndArgs(l []string) (string, []arg, error) {
	if len(l) == 0 {
		return "", nil, fmt.Errorf("it has no name")
	}
	for _, r := range l[0] {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return "", nil, fmt.Errorf("%q is no name: letters, digits and _", l[0])
		}
	}
	if c := l[0][0]; c >= '0' && c <= '9' {
		return "", nil, fmt.Errorf("%q is no name: it begins with a digit", l[0])
	}
	args, err := splitArgs(l[1:])
	return l[0], args, err
}

func (p *parser) deregMR(l []string) (action, error) {
	if len(l) != 1 || p.mr(l[0]) == nil {
		return nil, fmt.Errorf("dereg_mr names a region that is there")
	}
	return doDereg{p.mr(l[0])}, nil
}

var states = map[string]device.State{
	"RESET": device.StateReset, "INIT": device.StateInit, "RTR": device.StateRTR, "RTS": device.StateRTS,
	"SQD": device.StateSQD, "SQE": device.StateSQE, "ERR": device.StateErr,
}

// services are the types of queue pairs.
var services = map[string]device.QPType{"rc": device.RC, "uc": device.UC, "ud": device.UD, "xrc_ini": device.XRCIni, "xrc_tgt": device.XRCTgt}

// createQP reads create_qp NAME SERVICE [NAME=VALUE…].
func (p *parser) createQP(l []string) (action, error) {
	if len(l) < 2 {
		return nil, fmt.Errorf("create_qp NAME rc|uc|ud|xrc_ini|xrc_tgt")
	}
	name, args, err := nameAndArgs(slices.Delete(slices.Clone(l), 1, 2))
	if err != nil {
		return nil, err
	}
	q := &qp{name: name, first: len(p.qps) == 0, qpn: 0x11 + 0x100*uint32(len(p.qps)), dest: 0x22 + 0x100*uint32(len(p.qps)), rq: 0x200, sq: 0x100}
	var ok bool
	if q.typ, ok = services[l[1]]; !ok {
		return nil, fmt.Errorf("service %q: rc, uc, ud, xrc_ini or xrc_tgt", l[1])
	}
	q.service, _, _ = strings.Cut(l[1], "_")
	q.attr = device.QPAttr{
		State: device.StateRTS, PathMTU: 1024, Timeout: 14, RetryCnt: 6, RNRRetry: 6, MinRNRTimer: 12,
		MaxRdAtomic: 16, MaxDestRdAtomic: 16, Access: accesses["all"] &^ (device.LocalWrite | device.MWBind), QKey: 0x11111111,
	}
	state := device.StateRTS
	for _, a := range args {
		if err := p.qpArg(q, a, &state); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	if find(p.qps, func(o *qp) bool { return o.name == q.name || o.qpn == q.qpn }) != nil {
		return nil, fmt.Errorf("there is a queue pair %s or 0x%x already", q.name, q.qpn)
	}
	p.qps = append(p.qps, q)
	return doCreateQP{q, state}, nil
}

func (p *parser) qpArg(q *qp, a arg, state *device.State) error {
	small := map[string]*int{
		"timeout": &q.attr.Timeout, "retry_cnt": &q.attr.RetryCnt, "rnr_retry": &q.attr.RNRRetry, "min_rnr_timer": &q.attr.MinRNRTimer,
		"max_rd_atomic": &q.attr.MaxRdAtomic, "max_dest_rd_atomic": &q.attr.MaxDestRdAtomic, "mtu": &q.attr.PathMTU,
	}
	var v uint64
	var err error
	switch a.name {
	case "qpn":
		v, err = number(a.value, 24)
		q.qpn = uint32(v)
	case "dest":
		v, err = number(a.value, 24)
		q.dest = uint32(v)
	case "sq_psn":
		v, err = number(a.value, 24)
		q.sq = bth.PSN(v)
	case "rq_psn":
		v, err = number(a.value, 24)
		q.rq = bth.PSN(v)
	case "qkey":
		v, err = number(a.value, 32)
		q.attr.QKey = uint32(v)
	case "access":
		q.attr.Access, err = parseAccess(a.value)
	case "state":
		var ok bool
		if *state, ok = states[a.value]; !ok || *state > device.StateRTS {
			err = fmt.Errorf("%q: RESET, INIT, RTR or RTS", a.value)
		}
	default:
		to := small[a.name]
		if to == nil {
			return fmt.Errorf("no such attribute of a queue pair")
		}
		v, err = number(a.value, 16)
		*to = int(v)
	}
	if a.name == "timeout" && v > 31 {
		err = fmt.Errorf("0 ... 31 are possible")
	}
	return err
}

// modifyQP reads modify_qp state=S [qp=NAME] [err=ERRNO].
func (p *parser) modifyQP(l []string) (action, error) {
	args, err := splitArgs(l)
	if err != nil {
		return nil, err
	}
	d := doModify{}
	if d.qp, d.err, args, err = p.takeCall(args); err != nil {
		return nil, err
	}
	var ok bool
	if len(args) == 1 && args[0].name == "state" {
		d.to, ok = states[args[0].value]
	}
	if !ok {
		return nil, fmt.Errorf("modify_qp state=RESET|INIT|RTR|RTS|SQD|ERR")
	}
	return d, nil
}
