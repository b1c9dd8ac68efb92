package device

import (
	"math"
	"math/bits"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/mad"
)

// respTime is within which time a datagram is answered: 4.096 µs · 2^18, 1.07 s, as adapters say.
const respTime = 18

// ProcessMAD has the port answer a management datagram (256 bytes; package wire/mad reads and writes them): NodeInfo,
// NodeDescription and PortInfo of subnet management, ClassPortInfo, PortCounters and PortCountersExtended of performance
// management. What it does not know of these two it answers with a status; what is not for it, the answer is nil. This is what
// the device does with datagrams to its queue pairs 0 and 1, of which neither has to exist. m is not changed. EINVAL: another
// port, not 256 bytes of base version 1.
func (d *Device) ProcessMAD(port int, m []byte) ([]byte, error) {
	switch {
	case port != 1:
		return nil, &OpError{"process_mad", d.name, because(EINVAL, "port %d: the device has port 1", port)}
	case !mad.Valid(m):
		return nil, &OpError{"process_mad", d.name, because(EINVAL, "no management datagram: 256 bytes of base version 1")}
	}
	r := append(make([]byte, 0, mad.Len), m...)
	if !d.manage(r) {
		return nil, nil
	}
	return r, nil
}

// manage makes a valid datagram its own answer; false if there is none.
func (d *Device) manage(m []byte) bool {
	switch h := mad.Header(m); {
	case h.Class() == mad.PerfMgmt && h.Method() == mad.Get:
		d.perform(m)
	case h.Class().Subnet() && !mad.SMP(m).Returning() && (h.Method() == mad.Get || h.Method() == mad.Set):
		d.subnet(m)
	default:
		return false
	}
	return true
}

// subnet answers a Get or Set of subnet management. Nothing can be set: there is no subnet.
func (d *Device) subnet(m []byte) {
	h, p := mad.Header(m), mad.SMP(m)
	info, data := d.port.Info(), p.Data()
	st := mad.StatusOK
	guid := nodeGUID(info.MAC)
	switch a, mod := h.Attr(), h.Modifier(); {
	case h.ClassVersion() != mad.SubnVersion:
		st = mad.StatusBadVersion
	case h.Method() != mad.Get, a != mad.NodeInfo && a != mad.NodeDescription && a != mad.PortInfo:
		st = mad.StatusBadAttr
	case mod > 1, mod == 1 && a != mad.PortInfo:
		st = mad.StatusBadArgument
	case a == mad.NodeInfo:
		clear(data)
		mad.NodeInfoView(data).Encode(&mad.NodeInfoFields{
			NodeType: 1, Ports: 1, SystemGUID: guid, NodeGUID: guid, PortGUID: guid, PKeys: uint16(len(d.pkeys)), LocalPort: 1, VendorID: 0xFFFFFF,
		})
	case a == mad.NodeDescription:
		clear(data)
		copy(data, "softnic "+d.name)
	default:
		const (
			width1X  = 1
			speedQDR = 4 // 10 Gb/s
			upToQDR  = 7
			capCM    = 1 << 16 // connection management
		)
		f := mad.PortInfoFields{
			GIDPrefix: 0xFE80 << 48, Capabilities: capCM, LocalPort: 1, Width: width1X, Speed: speedQDR, Speeds: upToQDR,
			State: uint8(PortDown), PhysState: 3, ActiveMTU: mtuCode(int(d.mtu.Load())), MaxMTU: mtuCode(4096), VLCap: 1, ActiveV: 1,
			PKeyViolations: low16(d.counters.Drops(int(wire.PKey))), QKeyViolations: low16(d.counters.Drops(int(wire.QKey))),
			GUIDs: GIDTableLen, RespTime: respTime,
		}
		if d.up.Load() {
			f.State, f.PhysState = uint8(PortActive), 5
		}
		clear(data)
		mad.PortInfoView(data).Encode(&f)
	}
	h.Respond(st)
}

// perform answers a Get of performance management.
func (d *Device) perform(m []byte) {
	h, data := mad.Header(m), mad.PerfData(m)
	st := mad.StatusOK
	port, sel := data[1], uint16(data[2])<<8|uint16(data[3])
	c := d.counters
	switch a := h.Attr(); {
	case h.ClassVersion() != mad.PerfVersion:
		st = mad.StatusBadVersion
	case a != mad.ClassPortInfo && a != mad.PortCounters && a != mad.PortCountersExtended:
		st = mad.StatusBadAttr
	case h.Modifier() != 0, a != mad.ClassPortInfo && port != 1 && port != mad.AllPorts:
		st = mad.StatusBadArgument
	case a == mad.ClassPortInfo:
		clear(data)
		mad.ClassPortInfoView(data).Encode(&mad.ClassPortInfoFields{
			ClassVersion: mad.PerfVersion, Capabilities: mad.CapAllPorts | mad.CapExtended, RespTime: respTime,
		})
	case a == mad.PortCounters:
		clear(data)
		mad.PortCountersView(data).Encode(&mad.PortCountersFields{
			Port: port, Select: sel, LinkDowned: c.Load(stats.LinkDowned), RcvErrors: d.broken(), XmitDiscards: c.Load(stats.SendErr),
			RcvConstraint: c.Drops(int(wire.PKey)),
			XmitData:      c.Load(stats.SentBytes) / 4, RcvData: c.Load(stats.RcvdBytes) / 4,
			XmitPackets: c.Load(stats.SentPkts), RcvPackets: c.Load(stats.RcvdPkts),
		})
	default:
		clear(data)
		mad.ExtendedView(data).Encode(&mad.ExtendedFields{
			Port: port, Select: sel, XmitData: c.Load(stats.SentBytes) / 4, RcvData: c.Load(stats.RcvdBytes) / 4,
			XmitPackets: c.Load(stats.SentPkts), RcvPackets: c.Load(stats.RcvdPkts),
		})
	}
	h.Respond(st)
}

// broken counts the packets that came with an error in them.
func (d *Device) broken() uint64 {
	var n uint64
	for _, f := range []wire.Fault{wire.Malformed, wire.Fragment, wire.IPChecksum, wire.UDPChecksum, wire.ReservedOpcode, wire.TransportVersion, wire.ICRC} {
		n += d.counters.Drops(int(f))
	}
	return n
}

// mtuCode returns the code of an IB MTU: 1 (256) ... 5 (4096).
func mtuCode(m int) uint8 { return uint8(max(bits.Len(uint(m))-8, 0)) }

func low16(n uint64) uint16 { return uint16(min(n, math.MaxUint16)) }
