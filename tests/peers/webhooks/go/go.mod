module parley.example/webhooks

go 1.25.0

require (
	github.com/go-jose/go-jose/v4 v4.1.8
	github.com/standard-webhooks/standard-webhooks/libraries v0.0.1
)

require (
	github.com/a2aproject/a2a-go/v2 v2.4.0
	github.com/google/uuid v1.6.0 // indirect
)
