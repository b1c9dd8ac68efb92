package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/capture"
)

// Options of a server. The zero value is fine.
type Options struct {
	Version string       // of the program, for /v1/daemon and as firmware version
	Logger  *slog.Logger // nil: silent
	Taps    *capture.Tee // where captures of the running NIC are attached; nil: there are none
}

// Server answers requests about a device.
type Server struct {
	dev  *device.Device
	opts Options
	http http.Server

	captures captures
}

// The timeouts of a server: requests are tiny, and a client that is slow holds
// nothing but itself.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
)

// NewServer returns a server for dev.
func NewServer(dev *device.Device, o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "devel"
	}
	s := &Server{dev: dev, opts: o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/daemon", answer(s.daemon))
	mux.HandleFunc("GET /v1/dev", answer(s.devs))
	mux.HandleFunc("GET /v1/link", answer(s.links))
	mux.HandleFunc("GET /v1/statistic", answer(s.statistics))
	mux.HandleFunc("GET /v1/statistic/qp", answer(s.qpStatistics))
	mux.HandleFunc("GET /v1/qp", answer(s.qps))
	mux.HandleFunc("GET /v1/impair", answer(s.rules))
	mux.HandleFunc("POST /v1/impair", s.addRule)
	mux.HandleFunc("DELETE /v1/impair", s.clearRules)
	mux.HandleFunc("DELETE /v1/impair/{id}", s.removeRule)
	mux.HandleFunc("GET /v1/capture", s.capture)
	mux.HandleFunc("DELETE /v1/capture/{id}", s.endCapture)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		// A path that exists came here because of its method.
		var allow []string
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			if _, pattern := mux.Handler(&http.Request{Method: m, URL: r.URL, Host: r.Host}); pattern != "/" {
				allow = append(allow, m)
			}
		}
		if len(allow) > 0 {
			w.Header().Set("Allow", strings.Join(allow, ", "))
			fail(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: only %s is possible", r.Method, r.URL.Path, strings.Join(allow, " or ")))
			return
		}
		fail(w, http.StatusNotFound, fmt.Sprintf("%s does not exist; have /v1/daemon, /v1/dev, /v1/link, /v1/statistic, /v1/statistic/qp, /v1/qp, /v1/impair, /v1/capture", r.URL.Path))
	})
	s.http = http.Server{
		Handler: mux, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(logWriter{o.Logger}, "", 0),
	}
	return s
}

// Serve answers on l until Close. It returns nil after Close.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends Serve and closes its listener. Requests under way get a moment to end.
func (s *Server) Close() error {
	s.captures.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	if s.http.Shutdown(ctx) == nil {
		return nil
	}
	return s.http.Close()
}

func answer[T any](f func() (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		v, err := f()
		if err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		write(w, http.StatusOK, v)
	}
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func fail(w http.ResponseWriter, code int, text string) { write(w, code, Error{text}) }

func (s *Server) daemon() (Daemon, error) {
	return Daemon{PID: os.Getpid(), Version: s.opts.Version, Device: s.dev.Name(), Link: s.dev.Port().Info().Name}, nil
}

func (s *Server) devs() ([]Dev, error) {
	a := s.dev.Query()
	guid := guidText(a.NodeGUID)
	return []Dev{{
		Name: a.Name, NodeType: "ca", Firmware: s.opts.Version, NodeGUID: guid, SysImageGUID: guid,
		MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxCQ: a.MaxCQ, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR,
		MaxRdAtom: a.MaxRdAtom, Caps: a.Caps.Names(), AtomicCap: a.AtomicCap.String(), MaskedAtomicCap: a.MaskedAtomicCap.String(),
	}}, nil
}

// guidText writes a GUID in iproute2's way.
func guidText(g uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

func (s *Server) links() ([]Link, error) {
	a, err := s.dev.QueryPort(1)
	if err != nil {
		return nil, err
	}
	l := Link{
		Port: 1, Name: s.dev.Name(), State: "DOWN", PhysicalState: "DISABLED", Netdev: a.Netdev, Link: a.Link,
		LinkMTU: a.LinkMTU, ActiveMTU: a.ActiveMTU, MaxMTU: a.MaxMTU, IPID: a.IDRule, MAC: s.dev.Port().Info().MAC.String(),
		GIDs: []GID{}, Drops: s.statistic().Drops(),
	}
	if a.State == device.PortActive {
		l.State, l.PhysicalState = "ACTIVE", "LINK_UP"
	}
	for i := range a.GIDs {
		g, err := s.dev.QueryGID(1, i)
		if err != nil {
			return nil, err
		}
		if !g.IsZero() {
			l.GIDs = append(l.GIDs, GID{i, g.String(), "RoCE v2"})
		}
	}
	return []Link{l}, nil
}

// statistic returns the counters of the device, its port and its link.
func (s *Server) statistic() Statistic {
	return Statistic{Name: s.dev.Name(), Port: 1, Counters: s.dev.Statistics()}
}

func (s *Server) statistics() ([]Statistic, error) { return []Statistic{s.statistic()}, nil }

func (s *Server) qpStatistics() ([]Statistic, error) {
	l := []Statistic{}
	for _, q := range s.dev.QPStatistics() {
		l = append(l, Statistic{s.dev.Name(), 1, q.QPN, q.Type, q.Counters})
	}
	return l, nil
}

func (s *Server) qps() ([]QP, error) {
	comm := "softnic"
	if exe, err := os.Executable(); err == nil {
		comm = filepath.Base(exe)
	}
	l := []QP{}
	for _, q := range s.dev.QPs() {
		if q.Owner == (device.Owner{}) {
			q.Owner = device.Owner{PID: os.Getpid(), Comm: comm}
		}
		l = append(l, QP{
			Name: s.dev.Name(), Port: 1, LQPN: q.QPN, RQPN: q.DestQPN, Type: q.Type, State: q.State, PID: q.Owner.PID, Comm: q.Owner.Comm,
		})
	}
	slices.SortFunc(l, func(a, b QP) int { return int(a.LQPN) - int(b.LQPN) })
	return l, nil
}

// logWriter passes what package http has to say to a logger.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	w.log.Debug("control socket: " + string(b))
	return len(b), nil
}
