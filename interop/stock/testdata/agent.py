"""Verbs driven over a pipe: one JSON request a line on standard input, one JSON answer a line on standard output.

agent_test.go speaks to it, and says what is created, posted and expected: this program knows no test. Objects are
named by the numbers that their creation returned. A verb that fails answers {"error": text, "errno": n}.
"""
import ctypes
import json
import os
import select
import socket
import struct
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

MASKS = {  # QPAttr field: the bit that announces it
    "qp_access_flags": e.IBV_QP_ACCESS_FLAGS, "pkey_index": e.IBV_QP_PKEY_INDEX, "port_num": e.IBV_QP_PORT,
    "qkey": e.IBV_QP_QKEY, "ah_attr": e.IBV_QP_AV, "path_mtu": e.IBV_QP_PATH_MTU, "timeout": e.IBV_QP_TIMEOUT,
    "retry_cnt": e.IBV_QP_RETRY_CNT, "rnr_retry": e.IBV_QP_RNR_RETRY, "rq_psn": e.IBV_QP_RQ_PSN,
    "max_rd_atomic": e.IBV_QP_MAX_QP_RD_ATOMIC, "min_rnr_timer": e.IBV_QP_MIN_RNR_TIMER, "sq_psn": e.IBV_QP_SQ_PSN,
    "max_dest_rd_atomic": e.IBV_QP_MAX_DEST_RD_ATOMIC, "dest_qp_num": e.IBV_QP_DEST_QPN,
    "en_sqd_async_notify": e.IBV_QP_EN_SQD_ASYNC_NOTIFY, "cur_qp_state": e.IBV_QP_CUR_STATE,
}


def state_name(value):
    for name in ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"):
        if getattr(e, "IBV_QPS_" + name) == value:
            return name


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


class Agent:
    def __init__(self, device):
        self.ctx = Context(name=device)
        self.pd = PD(self.ctx)
        self.objects = {}
        self.wc_flags = {}  # of an extended completion queue: what may be read of its entries
        self.wc = None  # the last that was polled

    def keep(self, obj, **more):
        number = len(self.objects)
        self.objects[number] = obj
        return {"id": number, **more}

    def reg_mr(self, length, access):
        mr = MR(self.pd, length, access)
        if access & e.IBV_ACCESS_LOCAL_WRITE:
            mr.write(bytes(length), length)
        return self.keep(mr, addr=mr.buf, lkey=mr.lkey, rkey=mr.rkey)

    def mr_write(self, mr, offset, data):
        data = bytes.fromhex(data)
        self.objects[mr].write(data, len(data), offset)

    def mr_read(self, mr, offset, length):
        return {"data": self.objects[mr].read(length, offset).hex()}

    def alloc_pd(self):
        return self.keep(PD(self.ctx))

    def create_channel(self):
        return self.keep(CompChannel(self.ctx))

    def create_cq(self, depth, channel=None, vector=0):
        channel = None if channel is None else self.objects[channel]
        return self.keep(CQ(self.ctx, depth, None, channel, vector))

    def create_cq_ex(self, depth, channel=None, vector=0, wc_flags=0, flags=0, comp_mask=0):
        channel = None if channel is None else self.objects[channel]
        cq = CQEX(self.ctx, CqInitAttrEx(cqe=depth, channel=channel, comp_vector=vector, wc_flags=wc_flags, flags=flags, comp_mask=comp_mask))
        answer = self.keep(cq)
        self.wc_flags[answer["id"]] = wc_flags
        return answer

    def entry(self, cq):
        """The current entry of a batch. A field that was not asked for at creation has no function to read it."""
        flags, cq = self.wc_flags[cq], self.objects[cq]
        wc = {"wr_id": cq.wr_id, "status": cq.status, "opcode": cq.read_opcode(), "flags": cq.read_wc_flags()}
        if flags & e.IBV_WC_EX_WITH_BYTE_LEN:
            wc["byte_len"] = cq.read_byte_len()
        if flags & e.IBV_WC_EX_WITH_IMM:
            wc["key"] = cq.read_imm_data()
            wc["imm"] = socket.ntohl(wc["key"])
        if flags & e.IBV_WC_EX_WITH_QP_NUM:
            wc["qpn"] = cq.read_qp_num()
        if flags & e.IBV_WC_EX_WITH_SRC_QP:
            wc["src_qp"] = cq.read_src_qp()
        return wc

    def start_poll(self, cq):
        code = self.objects[cq].start_poll(PollCqAttr())
        return {"code": code, "wcs": [] if code else [self.entry(cq)]}

    def next_poll(self, cq):
        code = self.objects[cq].poll_next()
        return {"code": code, "wcs": [] if code else [self.entry(cq)]}

    def end_poll(self, cq):
        self.objects[cq].end_poll()

    def resize_cq(self, cq, depth):
        self.objects[cq].resize(depth)

    def create_srq(self, depth, sge, limit=0):
        return self.keep(SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=depth, max_sge=sge, srq_limit=limit))))

    def modify_srq(self, srq, mask, depth=0, limit=0):
        self.objects[srq].modify(SrqAttr(max_wr=depth, srq_limit=limit), mask)

    def query_srq(self, srq):
        attr = self.objects[srq].query()
        return {"depth": attr.max_wr, "sge": attr.max_sge, "limit": attr.srq_limit}

    def post_srq_recv(self, srq, wr_id, sge):
        self.objects[srq].post_recv(self.request(RecvWR, sge, wr_id=wr_id))

    def create_qp(self, type, scq, rcq, depth, sge, sig_all, inline=0, srq=None):
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline)
        init = QPInitAttr(qp_type=getattr(e, "IBV_QPT_" + type), scq=self.objects[scq], rcq=self.objects[rcq], cap=cap,
                          sq_sig_all=sig_all, srq=None if srq is None else self.objects[srq])
        qp = QP(self.pd, init)
        return self.keep(qp, qpn=qp.qp_num)

    def create_qp_ex(self, type, scq, rcq, depth, sge, sig_all, ops, inline=0):
        """A queue pair whose requests are made by calls, not from structures: some operations have no structure."""
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=sge, max_recv_sge=sge, max_inline_data=inline)
        flags = 0
        for name in ops:
            flags |= getattr(e, "IBV_QP_EX_WITH_" + name)
        init = QPInitAttrEx(qp_type=getattr(e, "IBV_QPT_" + type), scq=self.objects[scq], rcq=self.objects[rcq], cap=cap, pd=self.pd,
                            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, send_ops_flags=flags, sq_sig_all=sig_all)
        qp = QPEx(self.ctx, init)
        return self.keep(qp, qpn=qp.qp_num)

    def atomic_write(self, qp, wr_id, remote_addr, rkey, data):
        qp = self.objects[qp]
        qp.wr_start()
        qp.wr_id, qp.wr_flags = wr_id, 0
        qp.wr_atomic_write(rkey, remote_addr, bytes.fromhex(data))
        qp.wr_complete()

    def post_ex(self, qp, requests, abort=False):
        """Requests by calls, between one wr_start and one wr_complete."""
        qp = self.objects[qp]
        qp.wr_start()
        for r in requests:
            qp.wr_id, qp.wr_flags = r["wr_id"], r["flags"]
            to = r["rkey"], r["remote_addr"]
            imm = r["imm"]  # pyverbs swaps it here
            {
                "SEND": lambda: qp.wr_send(),
                "SEND_WITH_IMM": lambda: qp.wr_send_imm(imm),
                "SEND_WITH_INV": lambda: qp.wr_send_inv(r["invalidate"]),
                "RDMA_WRITE": lambda: qp.wr_rdma_write(*to),
                "RDMA_WRITE_WITH_IMM": lambda: qp.wr_rdma_write_imm(*to, imm),
                "RDMA_READ": lambda: qp.wr_rdma_read(*to),
                "ATOMIC_CMP_AND_SWP": lambda: qp.wr_atomic_cmp_swp(*to, r["compare_add"], r["swap"]),
                "ATOMIC_FETCH_AND_ADD": lambda: qp.wr_atomic_fetch_add(*to, r["compare_add"]),
                "LOCAL_INV": lambda: qp.wr_local_inv(r["invalidate"]),
            }[r["opcode"]]()
            if r["ah"] is not None:
                qp.wr_set_ud_addr(self.objects[r["ah"]], r["remote_qpn"], r["qkey"])
            if r["inline"]:
                data = bytes.fromhex(r["inline"])
                buf = ctypes.create_string_buffer(data, len(data))
                qp.wr_set_inline_data(ctypes.addressof(buf), len(data))
            elif len(r["sge"]) == 1:
                qp.wr_set_sge(SGE(*r["sge"][0]))
            elif r["sge"]:
                qp.wr_set_sge_list(len(r["sge"]), [SGE(*s) for s in r["sge"]])
        if abort:
            qp.wr_abort()
        else:
            qp.wr_complete()

    def alloc_mw(self, type):
        mw = MW(self.pd, type)
        return self.keep(mw, rkey=mw.rkey)

    def bind(self, qp, wr_id, mw, mr, addr, length, access):
        """Binds a window, and returns the key that it has then."""
        qp, mw = self.objects[qp], self.objects[mw]
        info = MWBindInfo(self.objects[mr], addr, length, access)
        if mw.type == e.IBV_MW_TYPE_1:
            qp.bind_mw(mw, MWBind(info, e.IBV_SEND_SIGNALED, wr_id))
            return {"rkey": mw.rkey}
        wr = SendWR(wr_id=wr_id, opcode=e.IBV_WR_BIND_MW, num_sge=0)
        wr.set_bind_wr(mw, info)
        qp.post_send(wr)
        return {"rkey": wr.rkey}

    def busy(self, qp):
        """What destroying what a queue pair uses answers. pyverbs would destroy the queue pair first."""
        lib, word = ctypes.CDLL("libibverbs.so.1"), ctypes.c_void_p * 6  # of struct ibv_qp
        _, _, pd, scq, rcq, srq = word.from_address(pointer(self.objects[qp]))
        verbs = {"pd": (lib.ibv_dealloc_pd, pd), "send cq": (lib.ibv_destroy_cq, scq), "receive cq": (lib.ibv_destroy_cq, rcq)}
        if srq:
            verbs["srq"] = lib.ibv_destroy_srq, srq
        return {"codes": {name: verb(ctypes.c_void_p(obj)) for name, (verb, obj) in verbs.items()}}

    def command(self, number, body):
        """A command as libibverbs writes it, without the response: 0 or the errno."""
        libc, body = ctypes.CDLL(None, use_errno=True), bytes.fromhex(body)
        record = struct.pack("=IHH", number, 2 + len(body) // 4, 0) + body
        return {"code": 0 if libc.write(self.ctx.cmd_fd, record, len(record)) == len(record) else ctypes.get_errno()}

    def handle(self, obj):
        return {"handle": self.objects[obj].handle}

    def unstored(self):
        """A command whose answer the memory does not take: the errno, and the handles of the domains made before and after."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        page = libc.mmap(ctypes.c_void_p(0), ctypes.c_size_t(4096), 1, 0x22, -1, ctypes.c_long(0))  # only to be read
        handle = ctypes.c_uint32()

        def ask(number, *words):
            body = struct.pack("=IHH" + "I" * len(words), number, 2 + len(words), 1, *words)
            return 0 if libc.write(self.ctx.cmd_fd, body, len(body)) == len(body) else ctypes.get_errno()

        def alloc(address):
            return ask(3, address & 0xffffffff, address >> 32)  # IB_USER_VERBS_CMD_ALLOC_PD

        codes, handles = [], []
        for _ in range(2):
            codes.append(alloc(ctypes.addressof(handle)))
            handles.append(handle.value)
            codes.append(ask(4, handle.value))  # DEALLOC_PD
            codes.append(alloc(page))
        return {"codes": codes, "handles": handles}

    def modify(self, qp, state, attrs):
        attr, mask = QPAttr(), 0
        if state:
            attr.qp_state, mask = getattr(e, "IBV_QPS_" + state), e.IBV_QP_STATE
        for name, value in attrs.items():
            setattr(attr, name, self.ah_attr(**value) if name == "ah_attr" else value)
            mask |= MASKS[name]
        self.objects[qp].modify(attr, mask)

    def mcast(self, qp, group, attach):
        """ibv_attach_mcast or ibv_detach_mcast, which pyverbs has not."""
        lib = ctypes.CDLL("libibverbs.so.1")
        verb = lib.ibv_attach_mcast if attach else lib.ibv_detach_mcast
        gid = socket.inet_pton(socket.AF_INET6, group)
        code = verb(ctypes.c_void_p(pointer(self.objects[qp])), ctypes.c_char_p(gid), ctypes.c_uint16(0))
        if code:
            return {"error": "ibv_attach_mcast" if attach else "ibv_detach_mcast", "errno": code}

    def query(self, qp):
        attr, init = self.objects[qp].query(0xffffff & ~e.IBV_QP_ALT_PATH)
        return {"state": state_name(attr.qp_state), "draining": attr.sq_draining != 0,
                "caps": [init.max_send_wr, init.max_recv_wr, init.max_send_sge, init.max_recv_sge, init.max_inline_data]}

    def query_attrs(self, qp):
        """What modify takes, read back."""
        attr, _ = self.objects[qp].query(0xffffff & ~e.IBV_QP_ALT_PATH)
        answer = {name: getattr(attr, name) for name in MASKS if name not in ("ah_attr", "cur_qp_state", "en_sqd_async_notify")}
        ah = attr.ah_attr
        answer["ah_attr"] = {"dgid": ah.dgid, "sgid_index": ah.sgid_index, "hop_limit": ah.hop_limit, "traffic_class": ah.traffic_class,
                             "flow_label": ah.flow_label, "is_global": ah.is_global, "port_num": ah.port_num}
        return answer

    def ah_attr(self, dgid=None, sgid_index=1, hop_limit=64, traffic_class=0):
        if dgid is None:
            return AHAttr(dlid=1, port_num=1)
        grh = GlobalRoute(dgid=GID(dgid), sgid_index=sgid_index, hop_limit=hop_limit, traffic_class=traffic_class)
        return AHAttr(gr=grh, is_global=1, port_num=1)

    def create_ah(self, **attr):
        return self.keep(AH(self.pd, attr=self.ah_attr(**attr)))

    def reply_ah(self, grh):
        """An address handle to whom the last datagram came from, whose GRH is there."""
        return self.keep(AH(self.pd, wc=self.wc, grh=grh, port_num=1))

    def request(self, cls, entries, **fields):
        """A work request. pyverbs insists on an entry where there is to be none."""
        wr = cls(num_sge=max(len(entries), 1), sg=[SGE(*s) for s in entries] or [SGE(0, 0, 0)], **fields)
        wr.num_sge = len(entries)
        return wr

    def post_recv(self, qp, wr_id, sge):
        self.objects[qp].post_recv(self.request(RecvWR, sge, wr_id=wr_id))

    def post_send(self, qp, wr_id, opcode, flags, imm, sge, remote_addr, rkey, ah=None, remote_qpn=0, qkey=0,
                  invalidate=0, compare_add=0, swap=0):
        wr = self.request(SendWR, sge, wr_id=wr_id, opcode=getattr(e, "IBV_WR_" + opcode), imm_data=invalidate or socket.htonl(imm),
                          send_flags=flags)
        if ah is not None:
            wr.set_wr_ud(self.objects[ah], remote_qpn, qkey)
        elif "ATOMIC" in opcode:
            wr.set_wr_atomic(rkey, remote_addr, compare_add, swap)
        else:
            wr.set_wr_rdma(rkey, remote_addr)
        self.objects[qp].post_send(wr)

    def poll(self, cq, count, limit):
        """Waits for count completions, or for the limit in seconds; returns what there is."""
        cq, wcs, deadline = self.objects[cq], [], time.monotonic() + limit
        while True:
            _, got = cq.poll(count - len(wcs))
            wcs += got
            self.wc = got[-1] if got else self.wc
            if len(wcs) >= count or time.monotonic() > deadline:
                break
            time.sleep(0.001)
        return {"wcs": [{
            "wr_id": wc.wr_id, "status": wc.status, "opcode": wc.opcode, "byte_len": wc.byte_len,
            "flags": wc.wc_flags, "imm": socket.ntohl(wc.imm_data), "key": wc.imm_data, "qpn": wc.qp_num, "src_qp": wc.src_qp,
        } for wc in wcs]}

    def arm(self, cq, solicited):
        self.objects[cq].req_notify(solicited)

    def get_event(self, channel, cq):
        """Blocks."""
        self.objects[channel].get_cq_event(self.objects[cq])
        self.objects[cq].ack_events(1)

    def event_fds(self):
        """The descriptors that are Unix sockets, by number, and whether each can be read: those of events."""
        fds = {}
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                target = os.readlink("/proc/self/fd/" + name)
            except OSError:
                continue  # that of the folder
            if target.startswith("socket:") and fd < 1000 and fd > 2:
                fds[fd] = bool(select.select([fd], [], [], 0)[0])
        return {"fds": fds}

    def get_async_event(self):
        """Blocks."""
        event = self.ctx.get_async_event()
        event.ack()
        return {"type": event.event_type}

    def query_device(self):
        return {"vectors": self.ctx.num_comp_vectors, "max_cqe": self.ctx.query_device().max_cqe}

    def query_device_ex(self):
        attr = self.ctx.query_device_ex()
        plain, orig = self.ctx.query_device(), attr.orig_attr
        names = [n for n in dir(plain) if not n.startswith("_") and n != "set_log_level"]
        return {"same": [getattr(plain, n) == getattr(orig, n) for n in names], "names": names,
                "flags": attr.device_cap_flags_ex, "plain_flags": plain.device_cap_flags, "ports": attr.phys_port_cnt_ex,
                "tso": attr.tso_caps.max_tso, "tags": attr.tm_caps.max_num_tags, "dm": attr.max_dm_size, "odp": attr.odp_caps.general_caps}

    def query_port(self, port):
        attr = self.ctx.query_port(port)
        return {"state": attr.state, "mtu": attr.active_mtu, "max_mtu": attr.max_mtu, "gids": attr.gid_tbl_len, "pkeys": attr.pkey_tbl_len,
                "max_msg": attr.max_msg_sz, "layer": attr.link_layer, "lid": attr.lid}

    def gid_entry(self, g):
        return {"gid": g.gid_str(), "index": g.gid_index, "port": g.port_num, "type": g.gid_type, "ifindex": g.ndev_ifindex}

    def query_gids(self, most):
        return {"gids": [self.gid_entry(g) for g in self.ctx.query_gid_table(most)]}

    def query_gid_ex(self, port, index):
        return {"gids": [self.gid_entry(self.ctx.query_gid_ex(port, index))]}

    def query_gid(self, port, index):
        return {"gid": str(self.ctx.query_gid(port, index)), "type": self.ctx.query_gid_type(port, index)}

    def query_pkey(self, port, index):
        return {"pkey": self.ctx.query_pkey(port, index)}

    def destroy(self, ids):
        for number in ids:
            self.objects[number].close()


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
