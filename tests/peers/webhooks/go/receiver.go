// A receiver of webhooks on the Go library of Standard Webhooks and go-jose.
//
//	webhooks hmac SECRET
//	webhooks jwt ADDRESS_OF_KEYS ISSUER
//
// It prints its address, then a line of JSON for each delivery, and ends when its standard input does.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type own struct {
	Digest string `json:"request_body_sha256"`
}

func fetched(address string) (*jose.JSONWebKeySet, error) {
	answer, err := http.Get(address)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	set := new(jose.JSONWebKeySet)
	return set, json.NewDecoder(answer.Body).Decode(set)
}

func verifyJwt(header http.Header, body []byte, keys, issuer, audience string) error {
	token, _ := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return err
	}
	set, err := fetched(keys)
	if err != nil {
		return err
	}
	var claims jwt.Claims
	var digest own
	if err := parsed.Claims(set, &claims, &digest); err != nil {
		return err
	}
	expected := jwt.Expected{Issuer: issuer, AnyAudience: jwt.Audience{audience}, ID: header.Get("webhook-id"), Time: time.Now()}
	if err := claims.Validate(expected); err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	if digest.Digest != hex.EncodeToString(sum[:]) {
		return errors.New("another body")
	}
	return nil
}

func verify(header http.Header, body []byte, url string) error {
	if os.Args[1] == "jwt" {
		return verifyJwt(header, body, os.Args[2], os.Args[3], url)
	}
	webhook, err := standardwebhooks.NewWebhook(os.Args[2])
	if err != nil {
		return err
	}
	return webhook.Verify(body, header)
}

func main() {
	if os.Args[1] == "send" {
		send()
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	url := fmt.Sprintf("http://%s/hook", listener.Addr())
	fmt.Println(url)
	var printing sync.Mutex
	go http.Serve(listener, http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		said, status := map[string]string{"id": request.Header.Get("webhook-id"), "why": ""}, 204
		if err := verify(request.Header, body, url); err != nil {
			said["why"], status = err.Error(), 401
		}
		line, _ := json.Marshal(said)
		printing.Lock()
		fmt.Println(string(line))
		printing.Unlock()
		response.WriteHeader(status)
	}))
	io.Copy(io.Discard, os.Stdin)
}
