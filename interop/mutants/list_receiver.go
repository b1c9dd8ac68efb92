package main

// receiverMutants are the rules of who receives, and of what may wait for whom.
var receiverMutants = []mutant{
	{name: "what is held leaves at the next look", file: receiverFile, old: "\tr.settle()\n\tif r.failed.Load() {", new: "\tif r.failed.Load() {", tests: "TestAckHeld|TestAckNotForgotten", packages: "./device"},
	{name: "a queue pair says goodbye", file: "device/run.go", old: "if !q.dead && !q.sending && q.tx.Patient() {", new: "if false && q.tx.Patient() {", tests: "TestAckNotForgotten", packages: "./device"},
	{name: "a device that is closed sends what it holds", file: "device/device.go", old: "\td.rx.close()\n", new: "", tests: "TestAckNotForgotten", packages: "./device"},
	{name: "who sleeps at the link hears of what is held", file: receiverFile, old: "r.holds.Add(1)\n\tif r.sits.Load() {", new: "r.holds.Add(1)\n\tif false {", tests: "TestHeldWhileAnotherSleeps", packages: "./device"},
	{name: "only plain acknowledgements are held", file: "device/receive.go", old: "rx != nil && !q.sending && q.tx.Patient()", new: "rx != nil && !q.sending", tests: "TestSmallRequestsGather|TestAckHeld|TestWaysToWait|TestAnswersAreNotHeld", packages: "./device"},
	{name: "who posts does not look", file: receiverFile, old: "int64(lookEvery) && r.away.Load() {\n\t\tr.posted.Store(int64(now))\n\t\tr.turn()", new: "int64(lookEvery) {\n\t\tr.posted.Store(int64(now))\n\t\tr.look()", tests: "TestPosterDoesNotLook", packages: "./device"},
	{name: "few requests do not wait for company", file: "device/run.go", old: "q.eng.Outstanding() >= deep+n", new: "q.eng.Outstanding() >= n", tests: "TestSmallRequestsGather", packages: "./device"},
	{name: "a bunch of requests goes", file: "device/run.go", old: "n >= bunch ||", new: "n > 2*bunch ||", tests: "TestSmallRequestsGather", packages: "./device"},
	{name: "requests of few queue pairs do not wait for company", file: "device/run.go", old: "q.dev.share.Users() > deep:", new: "q.dev.share.Users() > 0:", tests: "TestManyQueuePairsGather|TestSmallRequestsGather", packages: "./device"},
	{name: "requests of many queue pairs leave together", file: "device/run.go", old: "q.dev.share.Users() > deep:", new: "false:", tests: "TestManyQueuePairsGather", packages: "./device"},
	{name: "messages of many packets do not wait for company", file: "device/run.go", old: "case n <= few && q.dev", new: "case q.dev", tests: "TestManyQueuePairsGather", packages: "./device"},
	{name: "acknowledgements go behind requests", file: "device/run.go", old: "\t\tq.out.AcksLast()\n", new: "", tests: "TestAckHeld", packages: "./device"},
	{name: "an ACK does not pass other answers", file: "transport/tx.go", old: "\t\tif t.Token == 0 {\n\t\t\treturn\n\t\t}\n\t}\n\tfor range acks", new: "\t\t_ = t\n\t}\n\tfor range acks", tests: "TestAcksLast", packages: "./transport"},
	{name: "the end of a context wakes who sleeps at the link", file: waitingFile, old: "r.stop = context.AfterFunc(ctx, r.link.Wake)", new: "r.stop = nil", tests: "TestSleeperIsWoken", packages: "./device"},
	{name: "a completion wakes who sleeps at the link", file: waitingFile, old: "if r := s.at.Load(); r != nil {", new: "if r := s.at.Load(); false {", tests: "TestSleeperIsWoken", packages: "./device"},
	{name: "programs ring again before the receiver sleeps", file: receiverFile, old: "if !r.bells.empty() {", new: "if false {", tests: "TestQuietRings", packages: "./device"},
	{name: "the last look sees what was not rung for", file: "device/bells.go", old: "if q.dead || q.takesSends() != nil ||", new: "if loud || q.dead || q.takesSends() != nil ||", tests: "TestLastLook", packages: "./device"},
	{name: "a key is remembered with its version", file: keys, old: "l.version == k.version.Load() && l.access&a == a", new: "l.access&a == a", tests: "TestLastKey|TestCase", packages: "./device"},
	{name: "a key is remembered with its domain", file: keys, old: "l.key == key && l.pd == pd &&", new: "l.key == key &&", tests: "TestLastKey", packages: "./device"},
	{name: "a key is remembered with its rights", file: keys, old: "l.version == k.version.Load() && l.access&a == a &&", new: "l.version == k.version.Load() &&", tests: "TestLastKey", packages: "./device"},
	{name: "a key is remembered with its range", file: keys, old: "l.access&a == a && within(va, n, l.base, l.size)\n", new: "l.access&a == a\n", tests: "TestLastKey", packages: "./device"},
	{name: "a key that is known names one region", file: keys, old: " && mem == transport.Region(q.lastLocal.mem)\n", new: "\n", tests: "TestNames", packages: "./device"},
	{name: "packets of a list have one access", file: "transport/tx.go", old: "if l.holds[i].mem == mem {", new: "if false && l.holds[i].mem == mem {", tests: "TestHolds", packages: "./transport"},
	{name: "the access that is one too many ends", file: "transport/tx.go", old: "\t\t\tmem.Release()\n\t\t\tl.gather", new: "\t\t\tl.gather", tests: "TestHolds", packages: "./transport"},
	{name: "accesses end with a list that loses its packets", file: "transport/tx.go", old: "func (l *TxList) dropHolds() {\n\tif l.n == 0 {", new: "func (l *TxList) dropHolds() {\n\tif false {", tests: "TestHolds", packages: "./transport"},
	{name: "accesses end before a list has lost all packets", file: "transport/tx.go", old: "func (l *TxList) dropHolds() {\n\tif l.n == 0 {", new: "func (l *TxList) dropHolds() {\n\tif l.n >= 0 {", tests: "TestHolds", packages: "./transport"},
	{name: "what a list reads is the region that its key names", file: "transport/tx.go", old: "if i < 0 || !h.Names(lkey, va, n, l.holds[i].mem) {", new: "if i < 0 {", tests: "TestHolds", packages: "./transport"},
	{name: "the table's version counts", file: keys, old: "\tk.version.Add(1)\n", new: "", tests: "TestLastKey", packages: "./device"},
	{name: "a region that is gone is not begun again", file: keys, old: "if !l.gives(k, key, pd, va, n, a) || !l.mem.again() {\n\t\treturn false\n\t}", new: "if !l.gives(k, key, pd, va, n, a) {\n\t\treturn false\n\t}\n\tl.mem.begin()", tests: "TestLastKeyGone", packages: "./device"},
	{name: "who remembers a region does not keep its memory", file: "device/region.go", old: "r.Memory, r.of = nil, nil", new: "r.of = nil", tests: "TestLastKeyGone", packages: "./device"},
	{name: "requests that cannot be sent yet are no news", file: "device/bells.go", old: "any := q.fetches != before", new: "any := before == before", tests: "TestFullWindowIsNoNews", packages: "./device"},
	{name: "a link that fails has programs ring", file: receiverFile, old: "\t\tr.bells.ring() // nobody looks any more\n", new: "", tests: "TestFailedLinkRings", packages: "./device"},
	{name: "on a link that has failed programs ring", file: "device/bells.go", old: "if r.failed.Load() { // and who fails", new: "if false { // and who fails", tests: "TestFailedLinkRings", packages: "./device"},
	{name: "a queue pair that goes leaves the receiver's list", file: "device/qp.go", old: "\tif q.quiet {\n", new: "\tif false {\n", tests: "TestDestroyedRing", packages: "./device"},
	{name: "a device that is closed waits for who is about to hold", file: receiverFile, old: "\t\tfor _, q := range r.dev.allQPs() {\n", new: "\t\tr.drive.Lock()\n\t\tdefer r.drive.Unlock()\n\t\tfor _, q := range r.dev.allQPs() {\n", tests: "TestFarewellOfAll", packages: "./device"},
	{name: "who sits does not spin while another receives", file: receiverFile, old: "\t\t\ttime.Sleep(lookEvery)\n", new: "", tests: "TestNoSpinWhileAnotherReceives", packages: "./device"},
	{name: "each completion wakes one who waits", file: "device/cq.go", old: "if more || dead {", new: "if dead && len(wc) > 0 || more && false {", tests: "TestSeveralWait", packages: "./device"},
	{name: "the end of a queue wakes all who wait", file: "device/cq.go", old: "if more || dead {", new: "if more {", tests: "TestDestroyWakesAll", packages: "./device"},
	{name: "who takes the token of a channel takes the event", file: "device/events.go", old: "\t\tl.ready.sleep(ctx, rx) //", new: "\t\tif l.ready.sleep(ctx, rx); ctx.Err() != nil {\n\t\t\treturn e, ctx.Err()\n\t\t}\n\t\t//", tests: "TestTokenIsNotLost", packages: "./device"},
	{name: "one processor is yielded", file: receiverFile, old: "if !any && r.alone &&", new: "if !any && false && r.alone &&", tests: "TestPollerYields", packages: "./device"},
	{name: "a receiver that ends lets go of contexts", file: receiverFile, old: "\t\t\tr.watch(context.Background())\n\t\t\treturn net.ErrClosed", new: "\t\t\treturn net.ErrClosed", tests: "TestContextIsLetGo", packages: "./device"},
	{name: "the ring of a queue pair that is gone is not touched", file: "device/bells.go", old: "\t\tif !q.dead {\n\t\t\tring.Quiet(false)\n\t\t}", new: "\t\tring.Quiet(false)", tests: "TestDestroyedRing", packages: "./device"},
	{name: "the socket is armed for who waits", file: "link/udp/await_linux.go", old: "Events: unix.EPOLLIN | unix.EPOLLONESHOT}\n\tl.deaf", new: "Events: unix.EPOLLONESHOT}\n\tl.deaf", tests: "TestAwait", packages: "./link/udp"},
	{name: "the socket is in no set while nobody waits", file: "link/udp/await_linux.go", old: "\t_ = l.raw.Control(l.disarm)\n", new: "", tests: "TestAwait", packages: "./link/udp"},
	{name: "one Wake wakes once", file: "link/udp/await_linux.go", old: "\t\t_ = l.file.SetReadDeadline(time.Time{})\n", new: "", tests: "TestAwait", packages: "./link/udp"},
	{name: "uverbs: a queue pair below RTS is not quiet", file: "uverbs/bell.go", old: "case b.open && b.quiet:", new: "case b.quiet:", tests: "TestBell", packages: "./uverbs"},
	{name: "uverbs: the state bytes of others stay", file: "uverbs/bell.go", old: "old&^(0xFF<<b.shift)|state<<b.shift", new: "state<<b.shift", tests: "TestBell", packages: "./uverbs"},
	{name: "acknowledgements of several leave together", file: "device/receive.go", old: "\t\trx.settle() // what", new: "\t\t_ = rx // what", tests: "TestTogether", packages: "./device"},
	{name: "what came meanwhile is sent", file: "device/together.go", old: "\t\tq.leave(r.dev.now(), maxBursts, false) // what came meanwhile\n", new: "\t\tq.mu.Unlock()\n", tests: "TestTogether", packages: "./device"},
	{name: "a burst is to one host", file: "link/tx.go", old: "return a == *p\n", new: "return true\n", tests: "TestBurst|TestPort", packages: "./link"},
	{name: "each packet of a run is for an address of the device", file: "device/receive.go", old: " || p.View.Dst() != dst {", new: " || !dst.IsValid() {", tests: "TestForeignInRun", packages: "./device"},
	{name: "the last of a burst is shorter", file: "link/udp/recv_linux.go", old: "if n != s.segment {", new: "if n > s.segment {", tests: "TestBursts", packages: "./link/udp"},
	{name: "an ID that is set changes the checksum", file: "wire/checksum.go", old: "uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(id)", new: "uint32(^binary.BigEndian.Uint16(ip[10:])) + 0*uint32(id)", tests: "TestSealerAndChecker|TestBursts", packages: "./wire ./link/udp"},
	{name: "gather: short pieces are joined", file: "link/gather/gather_linux.go", old: "if len(b) > joinMost {", new: "if len(b) > 0 {", tests: "TestPieces", packages: "./link/gather"},
	{name: "gather: what is joined goes before a long piece", file: "link/gather/gather_linux.go", old: "\t\tp.cut()\n\t\tp.add(b)\n", new: "\t\tp.add(b)\n", tests: "TestPieces", packages: "./link/gather"},
	{name: "gather: what is joined is not lost with its place", file: "link/gather/gather_linux.go", old: "\t\tp.cut()\n\t\tp.joined, p.from", new: "\t\tp.joined, p.from", tests: "TestPieces", packages: "./link/gather"},
	{name: "gather: memory is not kept", file: "link/gather/gather_linux.go", old: "\tclear(p.list)\n", new: "", tests: "TestPieces", packages: "./link/gather"},

	// Headers that are like the one before.
	{name: "a sealed header is of one path", file: "wire/sealer.go", old: "if s.path != p.Path || s.ibLen", new: "if s.ibLen", tests: "TestSealerAndChecker", packages: "./wire"},
	{name: "a sealed header is of one length", file: "wire/sealer.go", old: "s.ibLen != p.IBLen() || s.port", new: "s.port", tests: "TestSealerAndChecker", packages: "./wire"},
	{name: "a sealed header is of one port", file: "wire/sealer.go", old: " || s.port != s.SrcPort {", new: " {", tests: "TestSealerAndChecker", packages: "./wire"},
	{name: "a checked header is the same", file: "wire/sealer.go", old: "if !c.known || c.net != net {", new: "if !c.known {", tests: "TestSealerAndChecker", packages: "./wire"},
	{name: "both bytes of an ID count", file: "wire/icrc/icrc.go", old: "s.reg ^ idHigh[diff>>8] ^ idLow[diff&0xFF]", new: "s.reg ^ idLow[diff&0xFF]", tests: "TestSealerAndChecker", packages: "./wire"},

	// What is under way together.
	{name: "share: queue pairs share the link", file: requester, old: "return min(r.window, max(minWindow, b/r.m.Attr.PathMTU))", new: "return r.window", tests: "TestShare", packages: "./transport/rc"},
	{name: "share: never less than the least window", file: requester, old: "max(minWindow, b/r.m.Attr.PathMTU)", new: "max(1, b/r.m.Attr.PathMTU)", tests: "TestShare", packages: "./transport/rc"},
	{name: "share: who is flushed leaves his part", file: requester, old: "r.ackAt, r.rnrUntil, r.reading = 0, 0, 0\n\tr.account()\n", new: "r.ackAt, r.rnrUntil, r.reading = 0, 0, 0\n", tests: "TestShare", packages: "./transport/rc"},
	{name: "share: who is reset leaves his part", file: requester, old: "\tr.una = r.max\n\tr.account()\n", new: "", tests: "TestShare", packages: "./transport/rc"},
	{name: "share: who is answered leaves his part", file: requester, old: "busy := r.una != r.max &&", new: "busy := r.max != 0 &&", tests: "TestShare", packages: "./transport/rc"},
}

const (
	receiverFile = "device/receiver.go"
	waitingFile  = "device/waiting.go"
)

func init() { mutants = append(mutants, receiverMutants...) }
