package device

import (
	"fmt"
	"slices"
	"strconv"
)

// DefaultPKey is the P_Key of the default partition, with full membership: the one entry of a table that Options.PKeys
// does not make another.
const DefaultPKey = 0xFFFF

// MaxPKeys is how many entries a P_Key table can have, as rdma_rxe reports it (rxe_param.h); rxe has one, softnic has as many as
// Options.PKeys.
const MaxPKeys = 64

// What a P_Key consists of.
const (
	pkeyPartition = 0x7FFF
	pkeyFull      = 0x8000 // membership: else limited
)

// checkPKeys returns the table that l asks for.
func checkPKeys(l []uint16) ([]uint16, error) {
	if len(l) == 0 {
		return []uint16{DefaultPKey}, nil
	}
	if len(l) > MaxPKeys {
		return nil, because(EINVAL, "%d P_Keys: a table has 1 ... %d", len(l), MaxPKeys)
	}
	for i, k := range l {
		switch {
		case k&pkeyPartition == 0:
			return nil, because(EINVAL, "P_Key 0x%04x names no partition: 0x0001 ... 0x7fff are possible, as a full member 0x8001 ... 0xffff", k)
		case slices.Contains(l[:i], k):
			return nil, because(EINVAL, "P_Key 0x%04x is there twice", k)
		}
	}
	return slices.Clone(l), nil
}

// ParsePKeys reads a P_Key table for Options.PKeys: 1 ... MaxPKeys numbers of 16 bits, hexadecimal with 0x in front. The low 15
// bits are the partition, and not 0; the highest is set for a full member. The same P_Key twice is an error (EINVAL).
func ParsePKeys(l []string) ([]uint16, error) {
	var t []uint16
	for _, s := range l {
		k, err := strconv.ParseUint(s, 0, 16)
		if err != nil {
			return nil, because(EINVAL, "P_Key %q: want a number of 16 bits, as 0x8001", s)
		}
		t = append(t, uint16(k))
	}
	return checkPKeys(t)
}

// QueryPKey returns an entry of the port's P_Key table (ibv_query_pkey), whose length is PortAttr.PKeys. The table does not
// change while the device is open. EINVAL: another port than 1, an index beyond the table.
func (d *Device) QueryPKey(port, index int) (uint16, error) {
	if port != 1 || index < 0 || index >= len(d.pkeys) {
		entries := "one entry"
		if n := len(d.pkeys); n > 1 {
			entries = fmt.Sprintf("%d entries", n)
		}
		return 0, &OpError{"query_pkey", d.name, because(EINVAL, "port %d index %d: port 1 has %s", port, index, entries)}
	}
	return d.pkeys[index], nil
}

// pkeyIndex finds the entry of the table that a packet's P_Key goes with: what QP1 takes.
func (d *Device) pkeyIndex(k uint16) (int, bool) {
	i := slices.IndexFunc(d.pkeys, func(own uint16) bool { return pkeyMatch(k, own) })
	return max(i, 0), i >= 0
}

// pkeyMatch compares partition keys: the same partition, and at least one of
// the two a full member (roce.md A.11).
func pkeyMatch(a, b uint16) bool { return (a^b)&pkeyPartition == 0 && (a|b)&pkeyFull != 0 }
