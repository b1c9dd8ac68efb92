package device

// Remote is what one side of a connection tells the other, by whatever means.
type Remote struct {
	GID GID    // where its packets come from
	QPN uint32 // 24 bits
	PSN uint32 // the first PSN that the side sends, 24 bits
}

// ConnectOptions are the attributes that Connect sets, with the ranges that QPAttr has for them. In the zero value path MTU,
// timeout and retries are those of ibv_rc_pingpong; access and depth are more than it asks for. Where -1 means something, so do
// all below 0.
type ConnectOptions struct {
	SGIDIndex    int    // 0 means the first entry of the remote GID's family: 1 for IPv4, else 0
	PathMTU      int    // bytes; 0 means the smaller of 1024 and the port's active MTU
	Access       Access // 0 means remote write and read; LocalWrite alone gives the peer nothing
	Timeout      int    // 0 means 14 (67 ms); -1 means no timer
	RetryCnt     int    // 0 means 7; -1 means none
	RNRRetry     int    // 0 means 7 (no limit); -1 means none
	MinRNRTimer  int    // 0 means 12 (0.64 ms); -1 means code 0 (655.36 ms)
	Depth        int    // READs, atomics and FLUSHes in flight, each way; 0 means 16, -1 none
	PKeyIndex    int    // entry of the P_Key table; looked at only where Connect begins in RESET
	TrafficClass uint8  // see AHAttr
	FlowLabel    uint32 // see AHAttr
}

func orDefault(v, def int) int {
	switch {
	case v == 0:
		return def
	case v < 0:
		return 0
	}
	return v
}

// Connect takes an RC, UC or XRC queue pair from RESET or INIT to RTS against a remote.
// psn is the first PSN that this side sends, 24 bits; the remote must know it. It is three modifies in a row, or two from INIT, and
// fails as they do, with EINVAL; the queue pair then stays where the last good one has taken it. Nothing is sent: whether the
// remote is there shows with the first request.
func (q *QP) Connect(psn uint32, r Remote, o ConnectOptions) error {
	if o.SGIDIndex == 0 && r.GID.Addr().Is4() {
		o.SGIDIndex = 1
	}
	if o.PathMTU == 0 {
		o.PathMTU = min(1024, int(q.dev.mtu.Load()))
	}
	if o.Access == 0 {
		o.Access = RemoteWrite | RemoteRead
	}
	depth := orDefault(o.Depth, 16)
	if q.State() == StateReset {
		if err := q.Modify(&QPAttr{State: StateInit, Port: 1, PKeyIndex: o.PKeyIndex, Access: o.Access}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess); err != nil {
			return err
		}
	}
	toRTR := AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrAccess
	toRTS := AttrState | AttrSQPSN
	switch q.typ {
	case RC:
		toRTR |= AttrMaxDestRdAtomic | AttrMinRNRTimer
		toRTS |= AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	case XRCIni:
		toRTS |= AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	case XRCTgt:
		toRTR |= AttrMaxDestRdAtomic | AttrMinRNRTimer
		toRTS |= AttrTimeout
	}
	err := q.Modify(&QPAttr{
		State: StateRTR, PathMTU: o.PathMTU, DestQPN: r.QPN, RQPSN: r.PSN, MaxDestRdAtomic: depth,
		MinRNRTimer: orDefault(o.MinRNRTimer, 12), Access: o.Access,
		AH: AHAttr{DGID: r.GID, SGIDIndex: o.SGIDIndex, TrafficClass: o.TrafficClass, FlowLabel: o.FlowLabel},
	}, toRTR)
	if err != nil {
		return err
	}
	return q.Modify(&QPAttr{
		State: StateRTS, Timeout: orDefault(o.Timeout, 14), RetryCnt: orDefault(o.RetryCnt, 7),
		RNRRetry: orDefault(o.RNRRetry, 7), SQPSN: psn, MaxRdAtomic: depth,
	}, toRTS)
}

// Activate takes a queue pair that needs no connection (UD, GSI, SMI, RAW_PACKET) from RESET to RTS. qkey is the Q_Key of the
// datagrams that it receives; UD alone goes by it. psn is the first that is sent, 24 bits; RAW_PACKET has none. EINVAL, as from
// Modify.
func (q *QP) Activate(qkey, psn uint32) error {
	toInit, toRTS := AttrState|AttrPKeyIndex|AttrPort|AttrQKey, AttrState|AttrSQPSN
	switch q.typ {
	case GSI, SMI:
		toInit &^= AttrPort
	case RawPacket:
		toInit, toRTS = AttrState|AttrPort, AttrState
	}
	if err := q.Modify(&QPAttr{State: StateInit, Port: 1, QKey: qkey}, toInit); err != nil {
		return err
	}
	if err := q.Modify(&QPAttr{State: StateRTR}, AttrState); err != nil {
		return err
	}
	return q.Modify(&QPAttr{State: StateRTS, SQPSN: psn}, toRTS)
}

// Address returns what a remote must know to connect to q, given the first PSN that q will send (Device.RandomPSN) and the entry of the
// GID table that it sends from. The GID is zero where the table has no such entry.
func (q *QP) Address(gidIndex int, psn uint32) Remote {
	g, _ := q.dev.QueryGID(1, gidIndex)
	return Remote{GID: g, QPN: q.num, PSN: psn}
}

// RandomPSN draws a first PSN, 24 bits, from Options.Rand.
func (d *Device) RandomPSN() uint32 { return d.random32() & 0xFFFFFF }
