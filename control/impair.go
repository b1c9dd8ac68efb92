package control

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/softnic/softnic/link/impair"
)

// Rule is what POST /v1/impair takes: an impairment rule, see package link/impair.
type Rule struct {
	Rule string `json:"rule"`
}

// maxRule bounds the body of a request.
const maxRule = 64 << 10

func (s *Server) rules() ([]impair.Status, error) { return s.dev.Port().Impair().List(), nil }

func (s *Server) addRule(w http.ResponseWriter, r *http.Request) {
	var in Rule
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRule))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("want {\"rule\":\"tx drop\"}: %v", err))
		return
	}
	rules := s.dev.Port().Impair()
	id, err := rules.Add(in.Rule)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	st := impair.Status{ID: id, Rule: in.Rule}
	for _, x := range rules.List() {
		if x.ID == id {
			st = x
		}
	}
	write(w, http.StatusCreated, st)
}

func (s *Server) removeRule(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err == nil {
		err = s.dev.Port().Impair().Remove(id)
	}
	if err != nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("no rule has the ID %s: `softnic impair show` lists them", r.PathValue("id")))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) clearRules(w http.ResponseWriter, _ *http.Request) {
	s.dev.Port().Impair().Clear()
	w.WriteHeader(http.StatusNoContent)
}
