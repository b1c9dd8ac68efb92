"""Verbs driven over a pipe: one JSON request a line on standard input, one JSON answer a line on standard output.

verbs_test.go speaks to it. It knows no test: what is created, posted and expected is said over there, so that one
script serves the kernel's driver and, started through softnic exec, softnic itself. Objects are named by the numbers
that their creation returned. An answer is {"error": text, "errno": n} when a verb has failed.
"""
import ctypes
import json
import os
import select
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
TYPES = {"RC": e.IBV_QPT_RC, "UC": e.IBV_QPT_UC, "UD": e.IBV_QPT_UD}
MASKS = {  # QPAttr field: the mask bit that announces it
    "qp_access_flags": e.IBV_QP_ACCESS_FLAGS, "pkey_index": e.IBV_QP_PKEY_INDEX, "port_num": e.IBV_QP_PORT,
    "qkey": e.IBV_QP_QKEY, "ah_attr": e.IBV_QP_AV, "path_mtu": e.IBV_QP_PATH_MTU, "timeout": e.IBV_QP_TIMEOUT,
    "retry_cnt": e.IBV_QP_RETRY_CNT, "rnr_retry": e.IBV_QP_RNR_RETRY, "rq_psn": e.IBV_QP_RQ_PSN,
    "max_rd_atomic": e.IBV_QP_MAX_QP_RD_ATOMIC, "min_rnr_timer": e.IBV_QP_MIN_RNR_TIMER,
    "sq_psn": e.IBV_QP_SQ_PSN, "max_dest_rd_atomic": e.IBV_QP_MAX_DEST_RD_ATOMIC, "dest_qp_num": e.IBV_QP_DEST_QPN,
    "cur_qp_state": e.IBV_QP_CUR_STATE,
}
STATES = {"RESET": e.IBV_QPS_RESET, "INIT": e.IBV_QPS_INIT, "RTR": e.IBV_QPS_RTR, "RTS": e.IBV_QPS_RTS,
          "SQD": e.IBV_QPS_SQD, "SQE": e.IBV_QPS_SQE, "ERR": e.IBV_QPS_ERR}


def descriptors():
    # All but the one that reads the folder.
    return {int(n) for n in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + n)}


def pointer(qp):
    """The struct ibv_qp of a pyverbs QP, which keeps it to itself: the word of it that points to one with its number."""
    with open("/proc/self/mem", "rb", 0) as memory:
        for at in range(id(qp), id(qp) + type(qp).__basicsize__, 8):
            memory.seek(at)
            word = int.from_bytes(memory.read(8), "little")
            try:
                memory.seek(word + 52)
                if int.from_bytes(memory.read(4), "little") == qp.qp_num:
                    return word
            except (OSError, ValueError, OverflowError):
                pass


def ring_slot(wr_id):
    """The address of the send request with this wr_id in a ring that this process shares with the kernel's driver."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/dev/infiniband/uverbs" not in line:
                continue
            ring = int(line.split("-")[0], 16)
            log2_size, mask = ctypes.c_uint32.from_address(ring).value, ctypes.c_uint32.from_address(ring + 4).value
            for at in range(ring + 384, ring + 384 + (mask + 1 << log2_size), 1 << log2_size):
                if ctypes.c_uint64.from_address(at).value == wr_id:
                    return at
    raise PyverbsError("no request with wr_id %#x" % wr_id)


class Agent:
    def __init__(self, device):
        before = descriptors()
        self.ctx = Context(name=device)
        self.async_fd = min(descriptors() - before - {self.ctx.cmd_fd}, default=None)  # pyverbs keeps it to itself
        self.pd = PD(self.ctx)
        self.objects = []
        self.channels = {}  # by CQ: its completion channel and that one's descriptor, which pyverbs keeps to itself

    def keep(self, *objects):
        self.objects.append(objects)
        return len(self.objects) - 1

    def reg_mr(self, length, access):
        mr = MR(self.pd, length, access)
        mr.write(bytes(length), length)
        return {"id": self.keep(mr), "addr": mr.buf, "lkey": mr.lkey, "rkey": mr.rkey}

    def mr_write(self, mr, offset, data):
        data = bytes.fromhex(data)
        self.objects[mr][0].write(data, len(data), offset)

    def mr_read(self, mr, offset, length):
        return {"data": self.objects[mr][0].read(length, offset).hex()}

    def create_cq(self, depth, events):
        if not events:
            return CQ(self.ctx, depth)
        before = descriptors()
        channel = CompChannel(self.ctx)
        fd = min(descriptors() - before)
        cq = CQ(self.ctx, depth, None, channel)
        self.channels[cq] = channel, fd
        return cq

    def create_qp(self, type, depth, sig_all, events=False, sge=1, inline=0, extended=False, srq=None):
        scq, rcq = self.create_cq(depth, events), self.create_cq(depth, events)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline)
        if extended:
            qp = QPEx(self.ctx, QPInitAttrEx(
                qp_type=TYPES[type], scq=scq, rcq=rcq, cap=cap, sq_sig_all=sig_all, pd=self.pd,
                comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=e.IBV_QP_EX_WITH_ATOMIC_WRITE | e.IBV_QP_EX_WITH_RDMA_READ))
        else:
            srq = srq if srq is None else self.objects[srq][0]
            qp = QP(self.pd, QPInitAttr(qp_type=TYPES[type], scq=scq, rcq=rcq, srq=srq, cap=cap, sq_sig_all=sig_all))
        return {"id": self.keep(qp, scq, rcq), "qpn": qp.qp_num}

    def create_srq(self, depth):
        return {"id": self.keep(SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=depth))))}

    def modify(self, qp, state, attrs):
        attr, mask = QPAttr(), 0
        if state:
            attr.qp_state, mask = STATES[state], e.IBV_QP_STATE
        for name, value in (attrs or {}).items():
            if name == "ah_attr":
                value = self.ah_attr(**value)
            elif name == "cur_qp_state":
                value = STATES[value]
            setattr(attr, name, value)
            mask |= MASKS[name]
        self.objects[qp][0].modify(attr, mask)

    def ah_attr(self, dgid, sgid_index=1, hop_limit=64, traffic_class=0, flow_label=0):
        grh = GlobalRoute(dgid=GID(dgid), sgid_index=sgid_index, hop_limit=hop_limit,
                          traffic_class=traffic_class, flow_label=flow_label)
        return AHAttr(gr=grh, is_global=1, port_num=PORT)

    def create_ah(self, **attr):
        return {"id": self.keep(AH(self.pd, attr=self.ah_attr(**attr)))}

    def sge(self, mr, offset, length, lkey=None):
        mr = self.objects[mr][0]
        return [SGE(mr.buf + offset, length, lkey or mr.lkey)]

    def sges(self, mr, offset, length, lkey, more):
        """The entry that is named, or those of a list of [offset, length] in the same region."""
        if more is None:
            return self.sge(mr, offset, length, lkey)
        return [s for at, n in more for s in self.sge(mr, at, n, lkey)]

    def post_recv(self, qp, wr_id, mr, offset, length, lkey=None, sges=None):
        sg = self.sges(mr, offset, length, lkey, sges)
        wr = RecvWR(wr_id=wr_id, num_sge=max(1, len(sg)), sg=sg or self.sge(mr, 0, 0))  # pyverbs refuses an empty list
        wr.num_sge = len(sg)
        self.objects[qp][0].post_recv(wr)

    def post_send(self, qp, wr_id, opcode, flags, imm, mr, offset, length, remote_addr, rkey, compare_add, swap,
                  ah, remote_qpn, qkey, lkey=None, sges=None):
        opcode = getattr(e, "IBV_WR_" + opcode)
        sg = self.sges(mr, offset, length, lkey, sges)
        if opcode in (e.IBV_WR_SEND_WITH_INV, e.IBV_WR_LOCAL_INV):
            imm = socket.ntohl(imm)  # a key, in the same place as immediate data
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=max(1, len(sg)), sg=sg or self.sge(mr, 0, 0), imm_data=socket.htonl(imm), send_flags=flags)
        wr.num_sge = len(sg)
        if opcode in (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(rkey, remote_addr, compare_add, swap)
        elif ah is not None:
            wr.set_wr_ud(self.objects[ah][0], remote_qpn, qkey)
        else:
            wr.set_wr_rdma(rkey, remote_addr)
        self.objects[qp][0].post_send(wr)

    def atomic_write(self, qp, wr_id, data, remote_addr, rkey):
        """ATOMIC WRITE of 8 bytes, from an extended queue pair."""
        qp = self.objects[qp][0]
        qp.wr_start()
        qp.wr_id, qp.wr_flags = wr_id, e.IBV_SEND_SIGNALED
        qp.wr_atomic_write(rkey, remote_addr, bytes.fromhex(data))
        qp.wr_complete()

    def flush(self, qp, wr_id, remote_addr, length, rkey, type, level):
        """FLUSH, which this libibverbs has not: a READ on an extended queue pair that is made one in its ring before the
        doorbell. The ring is found by the wr_id, which nothing else may have had."""
        qp = self.objects[qp][0]
        qp.wr_start()
        qp.wr_id, qp.wr_flags = wr_id, e.IBV_SEND_SIGNALED
        qp.wr_rdma_read(rkey, remote_addr)
        wqe = ring_slot(wr_id)
        ctypes.c_uint32.from_address(wqe + 12).value = 14  # IBV_WR_FLUSH
        ctypes.c_uint32.from_address(wqe + 32).value = length
        ctypes.c_uint32.from_address(wqe + 36).value = rkey
        ctypes.c_uint8.from_address(wqe + 40).value = type
        ctypes.c_uint8.from_address(wqe + 41).value = level
        # The length on the wire is that of the data that the request has.
        for resid in 184, 188:
            ctypes.c_uint32.from_address(wqe + resid).value = length
        qp.wr_complete()

    def alloc_mw(self, type):
        mw = MW(self.pd, type)
        return {"id": self.keep(mw), "rkey": mw.rkey}

    def bind_mw(self, qp, mw, wr_id, mr, offset, length, access):
        """Posts a bind; returns the key that the window gets."""
        mr, mw = self.objects[mr][0], self.objects[mw][0]
        info = MWBindInfo(mr, mr.buf + offset, length, access)
        if mw.type == e.IBV_MW_TYPE_1:
            self.objects[qp][0].bind_mw(mw, MWBind(info, wr_id, e.IBV_SEND_SIGNALED))
            return {"rkey": mw.rkey}
        wr = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        wr.set_bind_wr(mw, info)
        self.objects[qp][0].post_send(wr)
        return {"rkey": mw.rkey & ~0xff | (mw.rkey + 1) & 0xff}

    def poll(self, qp, which, count, limit):
        """Waits for count completions, or for the limit in seconds; returns what there is."""
        cq, wcs, deadline = self.objects[qp][which], [], time.monotonic() + limit
        while True:
            _, got = cq.poll(count - len(wcs))
            wcs += got
            if len(wcs) >= count or time.monotonic() > deadline:
                break
            time.sleep(0.001)
        return {"wcs": [{
            "wr_id": wc.wr_id, "status": wc.status, "opcode": wc.opcode, "byte_len": wc.byte_len,
            "flags": wc.wc_flags, "imm": socket.ntohl(wc.imm_data), "inv": wc.imm_data, "qpn": wc.qp_num, "src_qp": wc.src_qp,
        } for wc in wcs]}

    def arm(self, qp, which, solicited):
        self.objects[qp][which].req_notify(solicited)

    def event(self, qp, which, limit):
        """Waits for a completion event, or for the limit in seconds; takes and acknowledges it."""
        cq = self.objects[qp][which]
        channel, fd = self.channels[cq]
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(limit * 1000):
            return {"event": False}
        channel.get_cq_event(cq)
        cq.ack_events(1)
        return {"event": True}

    def async_events(self, count, limit):
        """Waits for count asynchronous events, or for the limit in seconds; takes, acknowledges and returns what there is."""
        poll, events, deadline = select.poll(), [], time.monotonic() + limit
        poll.register(self.async_fd, select.POLLIN)
        while len(events) < count and poll.poll(max(0, deadline - time.monotonic()) * 1000):
            event = self.ctx.get_async_event()
            events.append(event.event_type)
            event.ack()
        return {"events": events}

    def mcast(self, qp, group, attach):
        """ibv_attach_mcast or ibv_detach_mcast, which pyverbs has not."""
        lib = ctypes.CDLL("libibverbs.so.1")
        verb = lib.ibv_attach_mcast if attach else lib.ibv_detach_mcast
        gid = socket.inet_pton(socket.AF_INET6, group)
        code = verb(ctypes.c_void_p(pointer(self.objects[qp][0])), ctypes.c_char_p(gid), ctypes.c_uint16(0))
        if code:
            return {"error": "ibv_attach_mcast" if attach else "ibv_detach_mcast", "errno": code}

    def query(self, qp):
        attr, _ = self.objects[qp][0].query(0xffffff & ~e.IBV_QP_ALT_PATH)
        return {"state": {v: k for k, v in STATES.items()}[attr.qp_state],
                "sq_psn": attr.sq_psn, "rq_psn": attr.rq_psn}

    def join(self, group, netdev):
        """Has the host's IP stack join a group on an interface, as rdma_cm does."""
        packed, index = socket.inet_pton(socket.AF_INET6, group), socket.if_nametoindex(netdev)
        if packed.startswith(bytes(10) + b"\xff\xff"):
            member = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, packed[12:] + bytes(4) + index.to_bytes(4, "little"))
        else:
            member = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + index.to_bytes(4, "little"))
        self.keep(member)

    def destroy(self, id):
        for obj in self.objects[id]:
            obj.close()
            if obj in self.channels:
                self.channels.pop(obj)[0].close()


def main():
    agent = Agent(sys.argv[1])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(agent, request.pop("verb"))(**request) or {}
        except PyverbsError as err:
            answer = {"error": str(err), "errno": getattr(err, "error_code", 0) or 0}
        print(json.dumps(answer), flush=True)


main()
