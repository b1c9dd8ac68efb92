//go:build linux

package uverbs

import (
	"encoding/binary"

	"github.com/softnic/softnic/device"
)

const queryDeviceLen = 176

// What rdma_rxe reports and package device does not tell (observed, Linux 6.12).
const (
	pageSizeCap  = 0xFFFFF000
	maxResRdAtom = 258048

	// What it claims and has as little as the device; programs that know it find what they know.
	claimed = device.CapAutoPathMig | device.CapChangePhyPort
	// What its provider has no call for.
	unreachable = device.CapXRC | device.CapMemWindow2A | device.CapCurrQPStateMod
)

// capabilities are those of a device as programs see them (device_cap_flags_ex); the plain command has the low 32 bits.
func capabilities(d *device.Attr) device.Caps { return d.Caps&^unreachable | claimed }

// queryDevice answers struct ib_uverbs_query_device_resp.
func queryDevice(c *conn, _ *request, a *answer) error {
	d := c.s.dev.Query()
	b := make([]byte, 0, queryDeviceLen)
	u32 := func(l ...int) {
		for _, v := range l {
			b = le.AppendUint32(b, uint32(v))
		}
	}
	b = le.AppendUint64(b, 0) // fw_ver
	b = binary.BigEndian.AppendUint64(b, d.NodeGUID)
	b = binary.BigEndian.AppendUint64(b, d.NodeGUID)
	b = le.AppendUint64(b, d.MaxMRSize)
	b = le.AppendUint64(b, pageSizeCap)
	u32(int(d.VendorID), 0, 0, d.MaxQP, d.MaxQPWR, int(capabilities(&d)), d.MaxSGE, d.MaxSGE)
	u32(d.MaxCQ, d.MaxCQE, d.MaxMR, d.MaxPD)
	u32(d.MaxRdAtom, 0, maxResRdAtom, d.MaxInitRd, 0, int(d.AtomicCap))
	u32(0, 0, d.MaxMW, 0, 0) // ee, rdd, mw, raw ipv6, raw ethertype
	u32(d.MaxMcastGrp, d.MaxMcastQP, d.MaxMcastTotal, d.MaxAH, 0, 0)
	u32(d.MaxSRQ, d.MaxSRQWR, d.MaxSRQSGE)
	b = le.AppendUint16(b, uint16(d.MaxPKeys))
	b = append(b, uint8(d.AckDelay), uint8(d.Ports), 0, 0, 0, 0)
	a.core = b
	return nil
}

// queryDeviceEx answers struct ib_uverbs_ex_query_device_resp, of which rxe fills nothing but
// the flags behind that of the plain command.
func queryDeviceEx(c *conn, r *request, a *answer) error {
	if r.u64(0) != 0 {
		return device.EINVAL // comp_mask, reserved
	}
	if err := queryDevice(c, r, a); err != nil {
		return err
	}
	b := append(a.core, make([]byte, 304-queryDeviceLen)...)
	le.PutUint32(b[180:], uint32(min(len(b), r.room))) // response_length
	d := c.s.dev.Query()
	le.PutUint64(b[224:], uint64(capabilities(&d))) // device_cap_flags_ex
	a.core = b
	return nil
}

// queryPort answers struct ib_uverbs_query_port_resp.
func queryPort(c *conn, r *request, a *answer) error {
	p, err := c.s.dev.QueryPort(int(r.u8(8)))
	if err != nil {
		return err
	}
	const (
		capFlags     = 0x00010000 // IBV_PORT_CM_SUP
		linkUp       = 5          // physical state
		disabled     = 3
		width1X      = 1
		speedFDR10   = 8
		linkEthernet = 2
		grhRequired  = 1
	)
	b := make([]byte, 40)
	le.PutUint32(b[0:], capFlags)
	le.PutUint32(b[4:], device.MaxMessage)
	le.PutUint32(b[8:], uint32(p.BadPKeys))
	le.PutUint32(b[12:], uint32(p.BadQKeys))
	le.PutUint32(b[16:], uint32(p.GIDs))
	le.PutUint16(b[20:], uint16(p.PKeys))
	b[26], b[27], b[28] = uint8(p.State), mtuCode(p.MaxMTU), mtuCode(p.ActiveMTU)
	b[30] = 1 // max_vl_num
	b[34], b[35], b[36] = width1X, speedFDR10, disabled
	if p.State == device.PortActive {
		b[36] = linkUp
	}
	b[37], b[38] = linkEthernet, grhRequired
	a.core = b
	return nil
}
