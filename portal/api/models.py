"""What was answered to a POST with an idempotency key, so that a retry gets the same answer."""

from django.db import models

from portal.tenants.models import ApiToken


class IdempotentReply(models.Model):
    """The first answer to (token, key); kept for 24 hours."""

    id = models.BigAutoField(primary_key=True)
    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)  # method, path and body: another body is refused
    status = models.PositiveSmallIntegerField(null=True)  # null while the first is still at work
    body = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["token", "key"], name="reply_once")]
